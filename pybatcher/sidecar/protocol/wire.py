"""Codecs of all values on the sidecar's socket, to and from plain maps and lists. Pure.

wire_calls.py       generate, chat               codecs.py           all other questions
wire_results.py     results                      wire_errors.py      errors
wire_statistics.py  statistics, health, events   wire_fields.py      checks of received values
"""

from __future__ import annotations

from .wire_calls import RequestId, WireCall, read_call, read_content, write_call
from .wire_errors import error_from_wire, error_to_wire, plain_error
from .wire_results import (
    completion_from_wire,
    completion_to_wire,
    delta_of,
    embeddings_from_wire,
    embeddings_to_wire,
    piece_of,
    prefix_info_from_wire,
    prefix_info_to_wire,
    scores_from_wire,
    scores_to_wire,
)
from .wire_statistics import (
    event_from_wire,
    event_to_wire,
    health_from_wire,
    health_to_wire,
    statistics_from_wire,
    statistics_to_wire,
)

__all__ = [
    "RequestId",
    "WireCall",
    "completion_from_wire",
    "completion_to_wire",
    "delta_of",
    "embeddings_from_wire",
    "embeddings_to_wire",
    "error_from_wire",
    "error_to_wire",
    "event_from_wire",
    "event_to_wire",
    "health_from_wire",
    "health_to_wire",
    "piece_of",
    "plain_error",
    "prefix_info_from_wire",
    "prefix_info_to_wire",
    "read_call",
    "read_content",
    "scores_from_wire",
    "scores_to_wire",
    "statistics_from_wire",
    "statistics_to_wire",
    "write_call",
]

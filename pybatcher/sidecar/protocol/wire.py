"""What goes over the sidecar's socket, to and from plain maps and lists. Pure.

wire_calls.py       generate, chat               wire_questions.py   all else that is asked
wire_results.py     what comes of them           wire_errors.py      what goes wrong
wire_statistics.py  how the batcher is doing     wire_fields.py      distrust
"""

from __future__ import annotations

from .wire_calls import RequestId, WireCall, read_call, write_call
from .wire_errors import error_from_wire, error_to_wire, plain_error
from .wire_questions import (
    WireEmbed,
    WirePrefix,
    WireScore,
    read_add_prefix,
    read_detokenize,
    read_embed,
    read_remove_prefix,
    read_score,
    read_tokenize,
    write_add_prefix,
    write_detokenize,
    write_embed,
    write_remove_prefix,
    write_score,
    write_tokenize,
)
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
    "WireEmbed",
    "WirePrefix",
    "WireScore",
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
    "read_add_prefix",
    "read_call",
    "read_detokenize",
    "read_embed",
    "read_remove_prefix",
    "read_score",
    "read_tokenize",
    "scores_from_wire",
    "scores_to_wire",
    "statistics_from_wire",
    "statistics_to_wire",
    "write_add_prefix",
    "write_call",
    "write_detokenize",
    "write_embed",
    "write_remove_prefix",
    "write_score",
    "write_tokenize",
]

"""Ranges of the fields in a model's configuration; the limits are far above any real model's.

The compiled engine has the same ranges (csrc/config/config_fields.def); a test compares them.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

__all__ = [
    "MAX_CONV_SIZE",
    "MAX_EXPERTS",
    "MAX_GROUP",
    "MAX_HEADS",
    "MAX_HEAD_DIM",
    "MAX_LAYERS",
    "MAX_POSITIONS",
    "MAX_VOCABULARY",
    "MAX_WIDTH",
    "ExpertCount",
    "HeadCount",
    "HeadDim",
    "NonNegative",
    "Positive",
    "Range",
    "Width",
]

MAX_VOCABULARY = 2**24
MAX_WIDTH = 2**20
MAX_LAYERS = 1024
MAX_HEADS = 4096
MAX_HEAD_DIM = 1024
MAX_POSITIONS = 2**30
MAX_CONV_SIZE = 64
MAX_EXPERTS = 4096
"""The maximum number of experts of a layer."""
MAX_GROUP = 2**10
"""The maximum number of patches that become one row of the text model."""


class Range(NamedTuple):
    """The valid range of a numeric field, as an annotation of its type."""

    low: float
    high: float | None = None
    excludes_low: bool = False


Width = Annotated[int, Range(1, MAX_WIDTH)]
HeadCount = Annotated[int, Range(1, MAX_HEADS)]
HeadDim = Annotated[int, Range(1, MAX_HEAD_DIM)]
ExpertCount = Annotated[int, Range(1, MAX_EXPERTS)]
Positive = Annotated[float, Range(0, excludes_low=True)]
NonNegative = Annotated[float, Range(0)]

"""`ShortConvConfig`: the gated short convolution layers of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .limits import MAX_CONV_SIZE, Range

__all__ = ["ShortConvConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    """Gated short convolutions, which read the last few positions only (arXiv:2511.23404).

    `csrc/config/config_fields.def` documents the scalar fields.
    in_layer: for each layer, True if it is a short convolution.
    """

    conv_size: Annotated[int, Range(2, MAX_CONV_SIZE)]
    in_layer: tuple[bool, ...]

"""`ShortConvConfig`: the layers of a model that are gated short convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .limits import MAX_CONV_SIZE, Range

__all__ = ["ShortConvConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    """Layers without attention that see the last few positions only (arXiv:2511.23404).

    `csrc/config/config_fields.def` documents the scalar fields.
    in_layer: for each layer, True if it is one.
    """

    conv_size: Annotated[int, Range(2, MAX_CONV_SIZE)]
    in_layer: tuple[bool, ...]

"""`DeltaConfig`: the layers of a model with linear attention by the gated delta rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .limits import MAX_CONV_SIZE, HeadCount, HeadDim, Range

__all__ = ["DeltaConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig:
    """Layers with a state of fixed size instead of attention (arXiv:2412.06464).

    `csrc/config/config_fields.def` documents the scalar fields.
    in_layer: for each layer, True if it is one.
    """

    n_key_heads: HeadCount
    n_value_heads: HeadCount
    key_dim: HeadDim
    value_dim: HeadDim
    conv_size: Annotated[int, Range(1, MAX_CONV_SIZE)]
    in_layer: tuple[bool, ...]
    in_turn: bool = False

    @property
    def key_size(self) -> int:
        """The width of all queries, and of all keys."""
        return self.n_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """The width of all values."""
        return self.n_value_heads * self.value_dim

    @property
    def n_channels(self) -> int:
        """The numbers of a row that are convolved: queries, keys and values."""
        return 2 * self.key_size + self.value_size

"""`GatedDeltaNetConfig`: the gated delta net layers (linear attention) of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .limits import MAX_CONV_SIZE, HeadCount, HeadDim, Range

__all__ = ["GatedDeltaNetConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNetConfig:
    """Gated delta net layers, which have a state of fixed size instead of KV (arXiv:2412.06464).

    `csrc/config/config_fields.def` documents the scalar fields.
    in_layer: for each layer, True if it is a gated delta net.
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
        """The channels of the convolution: queries, keys and values of all heads."""
        return 2 * self.key_size + self.value_size

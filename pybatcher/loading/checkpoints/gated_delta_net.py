"""`DeltaConfig`: the layers of a model that are recurrent, by the gated delta rule."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeltaConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig:
    """Layers that have no attention, but a state of fixed size (arXiv:2412.06464).

    n_key_heads: heads of queries and of keys; n_value_heads: of values, a multiple.
    key_dim, value_dim: widths of a head.
    conv_size: positions that the convolution of q, k and v sees, each its own included.
    in_layer: for each layer, whether it is one.
    in_turn: value head h goes with key head h % n_key_heads; else neighbours share a key head:
        h / (n_value_heads / n_key_heads), rounded down.
    """

    n_key_heads: int
    n_value_heads: int
    key_dim: int
    value_dim: int
    conv_size: int
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

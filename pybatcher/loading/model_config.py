"""`ModelConfig`: the properties of a model that the forward pass needs."""

from __future__ import annotations

from dataclasses import dataclass

from .rope import Rope

__all__ = ["ModelConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The architecture and sizes of a decoder-only transformer.

    `pybatcher.loading` makes it from any file format and checks every value: sizes are
    positive, `n_heads` is a multiple of `n_kv_heads`, `head_dim` is even where
    positions are rotary.

    architecture: a key of `families.CLASSES`.
    vocab_size, hidden_size, intermediate_size: widths, in elements.
    n_layers, n_heads, n_kv_heads, head_dim: `n_heads * head_dim` need not be `hidden_size`.
    max_position_embeddings: most positions that a sequence may have.
    norm: "rms" (no bias) | "layer" (mean removed, with bias); norm_eps is added to the variance.
    activation: "silu" | "gelu_tanh" | "gelu".
    gated_mlp: the MLP is `down(act(gate(x)) * up(x))`, not `down(act(up(x)))`.
    position: "rope" | "learned".
    ropes: the rotary frequencies that layers have; empty where positions are learned.
    layer_ropes: for each layer, an index of `ropes`; -1: query and key do not turn.
    attention_scale: multiplies the dot product of query and key.
    sliding_windows: for each layer, how many positions a query sees, itself
        included; 0 = all.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    norm: str
    norm_eps: float
    activation: str
    gated_mlp: bool
    position: str
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int, ...]
    attention_scale: float
    sliding_windows: tuple[int, ...]

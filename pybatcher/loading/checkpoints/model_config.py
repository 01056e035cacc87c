"""`ModelConfig`: the properties of a model that the forward pass needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from .gated_delta_net import GatedDeltaNetConfig
from .limits import (
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    HeadCount,
    HeadDim,
    NonNegative,
    Positive,
    Range,
    Width,
)
from .moe import MoeConfig
from .rope import Rope
from .short_conv import ShortConvConfig

__all__ = ["Activation", "LayerShape", "ModelConfig"]

Activation = Literal["silu", "gelu_tanh", "gelu", "xielu", "relu_squared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """The sizes of one layer, which may differ from those of other layers, and the KV it reads."""

    n_kv_heads: HeadCount
    head_dim: HeadDim
    intermediate_size: Width
    kv_layer: Annotated[int, Range(-1, MAX_LAYERS - 1)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The architecture and sizes of a transformer: a decoder, or an encoder, which only embeds.

    `pybatcher.loading` makes the configuration from any file format and checks every value: sizes
    are positive, `n_heads` is a multiple of `n_kv_heads`, `head_dim` is even if positions are
    rotary.

    `csrc/config/config_fields.def` documents the scalar fields of this class and of its parts:
    the compiled engine has the same fields, defaults and ranges. `_core.config_fields()` returns
    its rows.

    ropes: the rotary frequencies that layers use; empty if positions are learned.
    layer_ropes: for each layer, an index of `ropes`; -1: query and key are not rotated.
    sliding_windows: for each layer, the number of positions that a query attends to, its own
        included; 0 = all. If attention is not causal, the window counts on each side.
    layer_shapes: the shape of each layer; (): n_kv_heads, head_dim and intermediate_size hold for
        all layers.
    moe: the experts that some layers have instead of an MLP, or beside it; None: no layer has any.
    gated_delta_net, short_conv: the recurrent layers, which have no attention. At most one of
        the two is set; None: no layer is of that kind.
    """

    architecture: str
    vocab_size: Annotated[int, Range(1, MAX_VOCABULARY)]
    hidden_size: Width
    n_layers: Annotated[int, Range(1, MAX_LAYERS)]
    n_heads: HeadCount
    n_kv_heads: HeadCount
    head_dim: HeadDim
    intermediate_size: Width
    max_position_embeddings: Annotated[int, Range(1, MAX_POSITIONS)]
    norm: Literal["rms", "layer"]
    norm_eps: Positive
    activation: Activation
    gated_mlp: bool
    position: Literal["rope", "learned"]
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int, ...]
    attention_scale: Positive
    sliding_windows: tuple[int, ...]
    pre_norm: bool = True
    post_norm: bool = False
    parallel_blocks: bool = False
    whole_qk_norm: bool = False
    qk_norm_after_rope: bool = False
    embedding_scale: Positive = 1.0
    attention_softcap: NonNegative = 0.0
    logit_scale: Positive = 1.0
    logit_softcap: NonNegative = 0.0
    moe: MoeConfig | None = None
    causal: bool = True
    norm_bias: bool = True
    residual_norms: Literal["none", "first", "all"] = "none"
    layer_shapes: tuple[LayerShape, ...] = ()
    value_norm: bool = False
    layer_scales: bool = False
    per_layer_embedding_size: Annotated[int, Range(0, MAX_WIDTH)] = 0
    per_layer_embedding_scale: Positive = 1.0
    attention_gate: bool = False
    takes_images: bool = False
    deepstack_layers: Annotated[int, Range(0, MAX_LAYERS)] = 0
    gated_delta_net: GatedDeltaNetConfig | None = None
    short_conv: ShortConvConfig | None = None

    @property
    def recurrent_layers(self) -> tuple[bool, ...]:
        """For each layer, True if it is recurrent."""
        kind = self.gated_delta_net or self.short_conv
        return (False,) * self.n_layers if kind is None else kind.in_layer

    @property
    def products_per_row(self) -> int:
        """Multiply-adds of a row in the matrices of all layers."""
        hidden, moe = self.hidden_size, self.moe
        total = 0
        for layer, is_recurrent in enumerate(self.recurrent_layers):
            shape = self.shape(layer)
            heads = self.n_heads + shape.n_kv_heads
            width = shape.intermediate_size
            if is_recurrent and self.gated_delta_net is not None:
                heads = 0
                total += hidden * (2 * self.gated_delta_net.n_channels)
            if moe is not None and moe.in_layer[layer]:
                width *= moe.beside_mlp or moe.shared_expert
                width += moe.n_experts_per_row * moe.intermediate_size
            total += 2 * hidden * heads * shape.head_dim + (2 + self.gated_mlp) * hidden * width
        return total

    def without_images(self) -> ModelConfig:
        """Return the configuration of the text model alone, whose rows have one position each."""
        ropes = tuple(replace(rope, axes=()) for rope in self.ropes)
        return replace(self, ropes=ropes, takes_images=False, deepstack_layers=0)

    def shape(self, layer: int) -> LayerShape:
        """Return the shape of a layer."""
        if self.layer_shapes:
            return self.layer_shapes[layer]
        return LayerShape(
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
        )

"""`ModelConfig`: the properties of a model that the forward pass needs."""

from __future__ import annotations

from dataclasses import dataclass

from .gated_delta_net import DeltaConfig
from .moe import MoeConfig
from .rope import Rope
from .short_conv import ShortConvConfig

__all__ = ["LayerShape", "ModelConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """Sizes of one layer, where they differ from those of others, and whose keys it reads.

    n_kv_heads, head_dim, intermediate_size: as of `ModelConfig`.
    kv_layer: the earlier layer whose keys and values it reads; -1: it has its own.
    """

    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    kv_layer: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The architecture and sizes of a transformer: a decoder, or an encoder, which only embeds.

    `pybatcher.loading` makes it from any file format and checks every value: sizes are
    positive, `n_heads` is a multiple of `n_kv_heads`, `head_dim` is even where
    positions are rotary.

    architecture: "llama" | "gemma3" | ...: a name for people.
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
    attention_softcap: bounds the scores s: `softcap * tanh(s / softcap)`; 0: none.
    sliding_windows: for each layer, how many positions a query sees, itself
        included; 0 = all. Where attention is not causal, on each side.
    moe: the experts that are the MLP of some layers, or beside it; None: no layer has any.
    causal: a query sees what comes before it; else what follows too, and a text is computed
        as a whole.
    norm_bias: norms of kind "layer" have a bias; else it is 0.
    stream_norms: "none" | "first" | "all": the norms before a block from which the residual
        stream goes on. The first is then that of the embedding; with "all" the norm after a
        block, of the sum, is the norm before the next one, and the last one is the final norm.
    pre_norm: what enters attention and the MLP is normed.
    post_norm: what they add to the residual stream is normed first.
    whole_qk_norm: the norms of q and k go over all heads at once, not over each.
    embedding_scale: multiplies the token embedding.
    logit_scale: multiplies the logits; logit_softcap then bounds them, 0: does not.
    layer_shapes: of each layer; (): all are as n_kv_heads, head_dim and intermediate_size say.
    value_norm: each head of v is normed, without a weight.
    layer_scales: each layer multiplies the residual stream, at its end.
    layer_input_size: width of the part of a second embedding of a token that each layer takes;
        0: there is none. layer_input_scale: multiplies that embedding.
    attention_gate: what attention gives is multiplied by the sigmoid of a product of its input.
    delta, short_conv: the layers that are recurrent, and have no attention: of one of both kinds;
        None: none is of that kind.
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
    pre_norm: bool = True
    post_norm: bool = False
    whole_qk_norm: bool = False
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    moe: MoeConfig | None = None
    causal: bool = True
    norm_bias: bool = True
    stream_norms: str = "none"
    layer_shapes: tuple[LayerShape, ...] = ()
    value_norm: bool = False
    layer_scales: bool = False
    layer_input_size: int = 0
    layer_input_scale: float = 1.0
    attention_gate: bool = False
    delta: DeltaConfig | None = None
    short_conv: ShortConvConfig | None = None

    @property
    def recurrent_layers(self) -> tuple[bool, ...]:
        """For each layer, whether it is recurrent."""
        kind = self.delta or self.short_conv
        return (False,) * self.n_layers if kind is None else kind.in_layer

    def shape(self, layer: int) -> LayerShape:
        """Return the shape of a layer."""
        if self.layer_shapes:
            return self.layer_shapes[layer]
        return LayerShape(
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
        )

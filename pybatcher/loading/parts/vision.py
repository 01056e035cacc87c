"""Parts of vision towers that several families share: encoder layers and their tensor rules.

The layers of a SigLIP have LayerNorm, biases and learned positions (Zhai et al. 2023,
arXiv:2303.15343).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_GROUP, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH
from ..checkpoints.model_config import Activation, ModelConfig
from ..checkpoints.rope import Rope
from ..checkpoints.tensors import TensorRule
from ..checkpoints.vision_config import VisionConfig

__all__ = [
    "ACTIVATIONS",
    "SIGLIP_LAYER",
    "EncoderSizes",
    "encoder_config",
    "layer_rules",
    "linear_rules",
    "norm_rules",
    "read_activation",
    "read_axial_rope",
    "read_encoder_sizes",
    "read_group",
    "siglip_rules",
    "with_vision",
]

ACTIVATIONS: Mapping[str, Literal["silu", "gelu_tanh", "gelu"]] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""The activations of towers and projectors, by transformers' names."""


SIGLIP_LAYER = {
    "attn_norm": "layer_norm1",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.out_proj",
    "mlp_norm": "layer_norm2",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
"""transformers' names of the parts of a SigLIP's layer, by canonical name."""


class EncoderSizes(NamedTuple):
    """The sizes of a tower's layers."""

    hidden: int
    n_layers: int
    n_heads: int
    head_dim: int
    intermediate: int


def read_encoder_sizes(
    fields: Fields, n_layers: str = "num_hidden_layers", n_heads: str = "num_attention_heads"
) -> EncoderSizes:
    """Read the sizes from a `vision_config`; n_layers and n_heads are names of its fields.

    Raises ModelFormatError for sizes that are inconsistent or out of range.
    """
    hidden = fields.integer("hidden_size", 1, MAX_WIDTH)
    heads = fields.integer(n_heads, 1, MAX_HEADS)
    if hidden % heads:
        raise fields.error(n_heads, f"a divisor of hidden_size, {hidden}")
    return EncoderSizes(
        hidden=hidden,
        n_layers=fields.integer(n_layers, 1, MAX_LAYERS),
        n_heads=heads,
        head_dim=hidden // heads,
        intermediate=fields.integer("intermediate_size", 1, MAX_WIDTH),
    )


def read_group(fields: Fields, name: str, hidden: int, default: int = 2) -> int:
    """Return the patches of a token, the square of field `name`. Raises ModelFormatError.

    hidden: the width of a patch in the tower, so many of which are joined.
    """
    group: int = fields.integer(name, 1, 32, default) ** 2
    if group > MAX_GROUP or group * hidden > MAX_WIDTH:
        raise fields.error(name, f"so small that the patches of a token have up to {MAX_WIDTH}")
    return group


def with_vision(
    blueprint: Blueprint,
    vision: VisionConfig,
    rules: Iterable[TensorRule],
    prefixes: tuple[tuple[str, str], ...],
) -> Blueprint:
    """Return the blueprint of a text model with a vision tower."""
    config = replace(blueprint.config, takes_images=True, deepstack_layers=len(vision.deepstack))
    return replace(
        blueprint,
        config=config,
        vision=vision,
        vision_rules=tuple(rules),
        vision_prefixes=prefixes,
    )


def read_activation(
    fields: Fields, name: str, default: str
) -> Literal["silu", "gelu_tanh", "gelu"]:
    """Return the activation in field `name`. Raises ModelFormatError for another one."""
    fields.refuse_unless(name, *ACTIVATIONS)
    return ACTIVATIONS[fields.text(name, default)]


def encoder_config(
    architecture: str,
    sizes: EncoderSizes,
    *,
    activation: Activation,
    norm_eps: float,
    norm: Literal["rms", "layer"] = "layer",
    gated_mlp: bool = False,
    rope: Rope | None = None,
    n_kv_heads: int | None = None,
    post_norm: bool = False,
    value_norm: bool = False,
    attention_scale: float | None = None,
) -> ModelConfig:
    """Return the configuration of a tower's layers, which have a norm before each block.

    architecture: the name of the text model. rope: None: q and k are not rotated.
    """
    scale = sizes.head_dim**-0.5 if attention_scale is None else attention_scale
    return ModelConfig(
        architecture=f"vision tower of {architecture}",
        vocab_size=1,
        hidden_size=sizes.hidden,
        n_layers=sizes.n_layers,
        n_heads=sizes.n_heads,
        n_kv_heads=n_kv_heads or sizes.n_heads,
        head_dim=sizes.head_dim,
        intermediate_size=sizes.intermediate,
        max_position_embeddings=MAX_POSITIONS,
        norm=norm,
        norm_eps=norm_eps,
        activation=activation,
        gated_mlp=gated_mlp,
        position="rope",
        ropes=() if rope is None else (rope,),
        layer_ropes=(-1 if rope is None else 0,) * sizes.n_layers,
        attention_scale=scale,
        sliding_windows=(0,) * sizes.n_layers,
        post_norm=post_norm,
        value_norm=value_norm,
        causal=False,
    )


def read_axial_rope(fields: Fields, name: str, head_dim: int, *, alternating: bool = False) -> Rope:
    """Return frequencies of which the first half is of a patch's row, the second of its column.

    alternating: True if the row has the frequencies of even numbers of a head, and the column
        those of odd numbers; otherwise both have the same frequencies, those of half a head.
    fields: a `vision_config`. name: its field with the number of heads, for the message. Raises
    ModelFormatError for a head that is not a multiple of 4 wide.
    """
    if head_dim % 4:
        raise fields.error(name, f"a number with heads of a multiple of 4 (they have {head_dim})")
    parameters = fields.child("rope_parameters")
    parameters.refuse_unless("rope_type", "axial", "default")
    owner = parameters if "rope_theta" in parameters else fields
    theta = owner.number("rope_theta", 1e-3, 1e12, 10000.0)
    half, quarter = head_dim // 2, head_dim // 4
    if alternating:
        exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
        exponents = np.concatenate([exponents[0::2], exponents[1::2]])
    else:
        exponents = np.tile(np.arange(0, half, 2, dtype=np.float64) / half, 2)
    frequencies: list[float] = np.power(theta, -exponents).astype(np.float32).tolist()
    return Rope(tuple(frequencies), axes=(0,) * quarter + (1,) * quarter)


def norm_rules(name: str, source: str, size: int, *, bias: bool = True) -> Iterator[TensorRule]:
    """Yield the rules of a norm."""
    yield TensorRule(name=f"{name}.weight", source=f"{source}.weight", shape=(size,))
    if bias:
        yield TensorRule(name=f"{name}.bias", source=f"{source}.bias", shape=(size,))


def linear_rules(
    name: str, source: str, n_out: int, n_in: int, *, bias: bool = True
) -> Iterator[TensorRule]:
    """Yield the rules of a linear layer."""
    yield TensorRule(name=f"{name}.weight", source=f"{source}.weight", shape=(n_out, n_in))
    if bias:
        yield TensorRule(name=f"{name}.bias", source=f"{source}.bias", shape=(n_out,))


def layer_rules(
    vision: VisionConfig, prefix: str, names: Mapping[str, str], *, bias: bool = True
) -> Iterator[TensorRule]:
    """Yield the rules of a tower's layers.

    prefix: the part of a source before the layer's number ("visual.blocks."). names: the names in
    the checkpoint by canonical name, for norms and linear layers; "qkv" is one matrix of q, k and v
    one above the other. bias: True if the linear layers have biases, and norms of kind "layer".
    """
    c = vision.layers
    hidden, inner, query, key = c.hidden_size, c.intermediate_size, c.n_heads, c.n_kv_heads
    query, key = query * c.head_dim, key * c.head_dim
    shapes = {
        "q": (query, hidden),
        "k": (key, hidden),
        "v": (key, hidden),
        "o": (hidden, query),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    for layer in range(c.n_layers):
        here, there = f"tower.layers.{layer}.", f"{prefix}{layer}."
        for name, source in names.items():
            if name == "qkv":
                yield from _fused_rules(here, there + source, (query, key, key), hidden, bias)
            elif name in shapes:
                yield from linear_rules(here + name, there + source, *shapes[name], bias=bias)
            elif name in ("q_norm", "k_norm"):
                yield from norm_rules(here + name, there + source, c.head_dim, bias=False)
            else:
                has_bias = bias and c.norm == "layer"
                yield from norm_rules(here + name, there + source, hidden, bias=has_bias)


def siglip_rules(
    vision: VisionConfig, prefix: str, patch_shape: tuple[int, ...]
) -> Iterator[TensorRule]:
    """Yield the rules of a SigLIP without its projector.

    prefix: the part of a source before "embeddings". patch_shape: that of the patch weight in the
    checkpoint, after its outputs.
    """
    hidden = vision.layers.hidden_size
    embeddings = f"{prefix}embeddings."
    yield TensorRule(
        name="tower.patch.weight",
        source=f"{embeddings}patch_embedding.weight",
        shape=(hidden, *patch_shape),
        reshaped=(hidden, vision.patch_size),
    )
    yield TensorRule(
        name="tower.patch.bias", source=f"{embeddings}patch_embedding.bias", shape=(hidden,)
    )
    yield TensorRule(
        name="tower.positions.weight",
        source=f"{embeddings}position_embedding.weight",
        shape=(vision.n_positions, hidden),
    )
    yield from layer_rules(vision, f"{prefix}encoder.layers.", SIGLIP_LAYER)
    yield from norm_rules("tower.final_norm", f"{prefix}post_layernorm", hidden)


def _fused_rules(
    here: str, source: str, sizes: tuple[int, int, int], n_in: int, bias: bool
) -> Iterator[TensorRule]:
    first, total = 0, sum(sizes)
    for name, size in zip(("q", "k", "v"), sizes, strict=True):
        rows = (first, first + size)
        first += size
        weight = f"{source}.weight"
        yield TensorRule(name=f"{here}{name}.weight", source=weight, shape=(total, n_in), rows=rows)
        if bias:
            yield TensorRule(
                name=f"{here}{name}.bias", source=f"{source}.bias", shape=(total,), rows=rows
            )

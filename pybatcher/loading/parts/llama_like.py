"""Models like a Llama: RMSNorm, rotary positions, grouped-query attention, gated SiLU MLP.

Many families use the field names of Llama's config.json and its tensor names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from ..checkpoints.blueprint import EMBEDDING, HEAD
from ..checkpoints.fields import Fields
from ..checkpoints.layer_types import read_sliding_layers
from ..checkpoints.limits import MAX_LAYERS, MAX_VOCABULARY
from ..checkpoints.llama_config import SizeNames, llama_config, read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.rope import Rope, read_rope
from ..checkpoints.tensors import TensorRule

__all__ = [
    "NAMES",
    "PRE_NORMS",
    "SANDWICH_NORMS",
    "read_config",
    "read_layer_windows",
    "read_n_layers",
    "rules",
    "with_head_order",
]

PRE_NORMS = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
"""transformers' names of a layer's norms, by canonical name."""

SANDWICH_NORMS = {
    "attn_norm": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
"""transformers' names of a layer's norms in models with a norm before and after each block."""

NAMES = SizeNames(
    hidden_size="hidden_size",
    n_layers="num_hidden_layers",
    n_heads="num_attention_heads",
    n_kv_heads="num_key_value_heads",
    head_dim="head_dim",
    intermediate_size="intermediate_size",
    max_position_embeddings="max_position_embeddings",
)
"""config.json's names of the sizes."""


def read_config(
    fields: Fields,
    windows: tuple[int, ...],
    head_dim: int | None = None,
    rope: Rope | None = None,
    norm_eps: float = 1e-6,
    names: SizeNames = NAMES,
    hidden_act: Collection[str] = ("silu", "swish"),
) -> ModelConfig:
    """Return the configuration of a config.json with the field names of the Llama family.

    windows: for each layer, the number of positions that a query attends to; 0 = all.
    head_dim: the default if config.json has none; None: hidden_size / n_heads.
    rope: the frequencies of all layers; None: read from config.json.
    norm_eps: the default if config.json has none.
    names: the names of the sizes.
    hidden_act: the names of the activation that config.json may have.
    """
    sizes = read_sizes(fields, names, head_dim)
    fields.refuse_unless("hidden_act", *hidden_act)
    return llama_config(
        sizes,
        architecture=fields.text("model_type"),
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCABULARY),
        norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, norm_eps),
        rope=rope or read_rope(fields, sizes.head_dim, sizes.max_position_embeddings),
        sliding_windows=windows,
    )


def read_n_layers(fields: Fields) -> int:
    """Return the number of layers."""
    n_layers: int = fields.integer(NAMES.n_layers, 1, MAX_LAYERS)
    return n_layers


def read_layer_windows(fields: Fields, window: int, n_layers: int) -> tuple[int, ...]:
    """Return the window of each layer, which is `window` if `layer_types` lists it as sliding."""
    return tuple(window if slides else 0 for slides in read_sliding_layers(fields, n_layers, 1))


def rules(
    config: ModelConfig,
    *,
    qkv_bias: bool,
    o_bias: bool,
    mlp_bias: bool,
    norms: Mapping[str, str] = PRE_NORMS,
    qk_norm: bool = False,
    norm_plus: float = 0.0,
    norm_bias: bool = False,
) -> Iterator[TensorRule]:
    """Yield a rule for every tensor except those of experts, with transformers' names as sources.

    norms: the names of a layer's norms. qk_norm: True if q and k are normalised.
    norm_plus: a number added to the weights of norms.
    norm_bias: True if the norms, except those of q and k, have biases.
    """
    hidden, vocabulary = config.hidden_size, config.vocab_size
    yield TensorRule(name=EMBEDDING, source="model.embed_tokens.weight", shape=(vocabulary, hidden))
    yield TensorRule(
        name="final_norm.weight", source="model.norm.weight", shape=(hidden,), plus=norm_plus
    )
    if norm_bias:
        yield TensorRule(name="final_norm.bias", source="model.norm.bias", shape=(hidden,))
    yield TensorRule(name=HEAD, source="lm_head.weight", shape=(vocabulary, hidden))
    sizes = {source: (name, hidden) for name, source in norms.items()}
    for layer in range(config.n_layers):
        here, there = f"layers.{layer}.", f"model.layers.{layer}."
        of_heads = _head_norms(config, layer) if qk_norm else {}
        for source, (name, size) in {**sizes, **of_heads}.items():
            yield TensorRule(
                name=f"{here}{name}.weight",
                source=f"{there}{source}.weight",
                shape=(size,),
                plus=norm_plus,
            )
            if norm_bias and source in sizes:
                yield TensorRule(
                    name=f"{here}{name}.bias", source=f"{there}{source}.bias", shape=(size,)
                )
        yield from _matrix_rules(config, layer, qkv_bias, o_bias, mlp_bias)


def with_head_order(rules: Iterable[TensorRule], order: tuple[int, ...]) -> Iterator[TensorRule]:
    """Yield the rules with an order for the rows of each head of q and k, and of their norms.

    order: the result of `rotary_order`; (): the order does not change.
    """
    for rule in rules:
        is_rotated = re.fullmatch(r"layers\.\d+\.[qk](_norm)?\.(weight|bias)", rule.name)
        yield replace(rule, head_order=order) if is_rotated else rule


def _head_norms(config: ModelConfig, layer: int) -> dict[str, tuple[str, int]]:
    """Return name and size of the norms of q and k, by source; layers that share KV have no k."""
    shape = config.shape(layer)
    n_q, n_k = (config.n_heads, shape.n_kv_heads) if config.whole_qk_norm else (1, 1)
    norms = {"self_attn.q_norm": ("q_norm", n_q * shape.head_dim)}
    if shape.kv_layer < 0:
        norms["self_attn.k_norm"] = ("k_norm", n_k * shape.head_dim)
    return norms


def _matrix_rules(
    config: ModelConfig, layer: int, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    here, there = f"layers.{layer}.", f"model.layers.{layer}."
    hidden, shape = config.hidden_size, config.shape(layer)
    inner, head_dim = shape.intermediate_size, shape.head_dim
    query, key = config.n_heads * head_dim, shape.n_kv_heads * head_dim

    has_mlp = config.moe is None or not config.moe.replaces_mlp(layer)
    for name, source, n_out, n_in, bias in (
        ("q", "self_attn.q_proj", query, hidden, qkv_bias),
        ("k", "self_attn.k_proj", key, hidden, qkv_bias),
        ("v", "self_attn.v_proj", key, hidden, qkv_bias),
        ("o", "self_attn.o_proj", hidden, query, o_bias),
        ("gate", "mlp.gate_proj", inner, hidden, mlp_bias),
        ("up", "mlp.up_proj", inner, hidden, mlp_bias),
        ("down", "mlp.down_proj", hidden, inner, mlp_bias),
    ):
        if not has_mlp and source.startswith("mlp."):
            continue
        if name == "gate" and not config.gated_mlp:
            continue
        if shape.kv_layer >= 0 and name in ("k", "v"):
            continue
        yield TensorRule(
            name=f"{here}{name}.weight", source=f"{there}{source}.weight", shape=(n_out, n_in)
        )
        if bias:
            yield TensorRule(
                name=f"{here}{name}.bias", source=f"{there}{source}.bias", shape=(n_out,)
            )

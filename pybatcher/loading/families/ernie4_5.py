"""ERNIE 4.5: a Llama with rope in interleaved pairs; `use_bias` applies to all matrices.

The MoE models (`ernie4_5_moe`) have experts in some layers. Rows choose experts by the sums of a
softmax and biases, and add the result of a shared expert without a gate. `use_bias` is
refused in these, and their tensors of multi-token prediction are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_LAYERS, MAX_WIDTH
from ..checkpoints.llama_config import read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.moe import MoeConfig
from ..checkpoints.rope import read_rope, rotary_order
from ..checkpoints.tensors import TensorRule
from ..parts import gguf_experts, llama_like
from ..parts.experts import expert_rules, is_sparse, read_n_experts, with_shared_expert
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_experts import GgufExperts, expert_bias_rules
from ..parts.gguf_llama import (
    biases,
    gguf_blueprint,
    read_gguf_config,
    renamed,
    renamed_beside_experts,
)

_THETA = 5e5
_DEFAULTS_OF_MOE = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_num_experts": 64,
}
_MOST_SHARED = 64
_GREATEST_NORM_MIN = 1e-9  # a sum of weights that no row gets below


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults({"num_key_value_heads": 2, "head_dim": 128})
    sizes = read_sizes(fields, llama_like.NAMES)
    rope = read_rope(fields, sizes.head_dim, sizes.max_position_embeddings, default_theta=_THETA)
    config = llama_like.read_config(fields, (0,) * sizes.n_layers, rope=rope, norm_eps=1e-5)
    bias = fields.boolean("use_bias", False)
    rules = _rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=bias)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", True))


def _rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    """Yield a rule for every tensor but those of experts that rows choose."""
    order = rotary_order(config.head_dim, config.head_dim, interleaved=True)
    has_shared = config.moe is not None and config.moe.shared_expert
    found = llama_like.rules(
        replace(config, moe=None) if has_shared else config,  # layers with experts have an MLP too
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
    )
    for rule in llama_like.with_head_order(found, order):
        there = ".mlp.shared_experts." if is_sparse(config, rule) else ".mlp."
        yield replace(rule, source=rule.source.replace(".mlp.", there))


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = read_gguf_config(contents)
    return gguf_blueprint(contents, config, renamed(_rules(config, **biases(contents))))


def _read_moe(fields: Fields) -> Blueprint:
    fields = fields.with_defaults(_DEFAULTS_OF_MOE)
    sizes = read_sizes(fields, llama_like.NAMES)
    rope = read_rope(fields, sizes.head_dim, sizes.max_position_embeddings, default_theta=_THETA)
    config = llama_like.read_config(fields, (0,) * sizes.n_layers, rope=rope, norm_eps=1e-5)
    fields.refuse_unless("use_bias", False)  # the head would have biases, too
    fields.number("moe_norm_min", 0.0, _GREATEST_NORM_MIN, 0.0)
    n_experts = read_n_experts(fields, "moe_num_experts", sizes.n_layers)
    n_shared = fields.integer("moe_num_shared_experts", 0, _MOST_SHARED, 2)
    first = fields.integer("moe_layer_start_index", 0, MAX_LAYERS, 1)
    last = fields.integer("moe_layer_end_index", -1, MAX_LAYERS, -1)
    step = fields.integer("moe_layer_interval", 1, MAX_LAYERS, 1)
    moe = MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("moe_k", 1, n_experts),
        intermediate_size=fields.integer("moe_intermediate_size", 1, MAX_WIDTH),
        normalised=True,
        in_layer=_sparse_layers(sizes.n_layers, first, sizes.n_layers if last < 0 else last, step),
        shared_expert=n_shared > 0,
        shared_gate=n_shared == 0,
    )
    if n_shared * moe.intermediate_size > MAX_WIDTH:
        raise fields.error("moe_num_shared_experts", f"up to {MAX_WIDTH} elements in all of them")
    config = _with_experts(config, moe, n_shared)
    rules = _rules(config, qkv_bias=False, o_bias=False, mlp_bias=False)
    tied = fields.boolean("tie_word_embeddings", True)
    return Blueprint(config, (*rules, *expert_rules(config), *_bias_rules(config)), tied)


def _sparse_layers(n_layers: int, first: int, last: int, step: int) -> tuple[bool, ...]:
    """Return, for each layer, True if it has experts."""
    return tuple(first <= layer <= last and (layer + 1) % step == 0 for layer in range(n_layers))


def _with_experts(config: ModelConfig, moe: MoeConfig, n_shared: int) -> ModelConfig:
    if not any(moe.in_layer):
        return replace(config, moe=None)
    if n_shared == 0:
        return replace(config, moe=moe)
    return with_shared_expert(config, moe, n_shared * moe.intermediate_size)


def _bias_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of the biases of routers, which live modules have in the router."""
    moe = config.moe
    for layer in range(config.n_layers):
        if moe is None or not moe.in_layer[layer]:
            continue
        there = f"model.layers.{layer}.mlp."
        rule = TensorRule(
            name=f"layers.{layer}.expert_bias",
            source=f"{there}moe_statics.e_score_correction_bias",
            shape=(1, moe.n_experts),
            index=0,
        )
        live = replace(rule, source=f"{there}gate.moe_statics.e_score_correction_bias")
        yield replace(rule, otherwise=live)


def _read_gguf_moe(contents: GgufContents) -> Blueprint:
    keys = contents.keys
    n_shared = keys.integer("expert_shared_count", 0, _MOST_SHARED, 0)
    experts = GgufExperts(always=True, shared_expert=n_shared > 0, n_shared=n_shared)
    config = read_gguf_config(contents, architecture="ernie4_5_moe", experts=experts)
    if config.moe is not None:
        first = keys.integer("leading_dense_block_count", 0, MAX_LAYERS, 0)
        step = keys.integer("interleave_moe_layer_step", 1, MAX_LAYERS, 1)
        in_layer = _sparse_layers(config.n_layers, first, config.n_layers, step)
        moe = replace(config.moe, in_layer=in_layer, shared_gate=n_shared == 0)
        if n_shared * moe.intermediate_size > MAX_WIDTH:
            raise keys.error("expert_shared_count", f"up to {MAX_WIDTH} elements in all of them")
        config = _with_experts(config, moe, n_shared)
    rules = (
        *renamed_beside_experts(config, _rules(config, **biases(contents))),
        *gguf_experts.expert_rules(config),
        *expert_bias_rules(config, contents.tensors),
    )
    return gguf_blueprint(contents, config, rules)


FAMILY = Family(
    hf={"ernie4_5": _read, "ernie4_5_moe": _read_moe},
    classes={"ernie4_5": "Ernie4_5ForCausalLM", "ernie4_5_moe": "Ernie4_5_MoeForCausalLM"},
    gguf={"ernie4_5": _read_gguf, "ernie4_5-moe": _read_gguf_moe},
)

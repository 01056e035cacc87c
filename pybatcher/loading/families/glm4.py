"""GLM-4-0414 (9B and 32B): norms before and after each block, and rope in interleaved pairs.

The first half of each head is rotated. q, k and v have biases; gate and up are one tensor.

GLM-4.5 and 4.6 (`glm4_moe`) have experts after the first layers, selected by sigmoids and biases,
and a shared expert without a gate. They have norms before the blocks alone, and rope in halves.
Layers that predict further tokens come last, and are left out.
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
from ..checkpoints.rope import read_rope, read_rotary_dim, rotary_order
from ..checkpoints.tensors import TensorRule
from ..parts import gguf_experts, llama_like
from ..parts.experts import (
    expert_bias_rule,
    expert_rules,
    is_sparse,
    read_n_experts,
    with_shared_expert,
)
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_experts import GgufExperts, expert_bias_rules
from ..parts.gguf_llama import (
    ROTARY_DIM,
    biases,
    gguf_blueprint,
    read_gguf_config,
    renamed,
    renamed_beside_experts,
)

_DEFAULTS = {"num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5}
_EPSILON = 1.5625e-7
_NORMS = {
    "attn_norm": "input_layernorm",
    "attn_post_norm": "post_self_attn_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "mlp_post_norm": "post_mlp_layernorm",
}
_GGUF_NAMES = {"gate": "ffn_up"}
_GGUF_NAMES_OF_MOE = {"mlp_norm": "post_attention_norm"}
_DEFAULTS_OF_MOE = {
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.5,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "first_k_dense_replace": 1,
}
_MOST_SHARED = 64
_MOST_PREDICTING = 8  # layers that predict further tokens


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults(_DEFAULTS)
    sizes = read_sizes(fields, llama_like.NAMES)
    rotary_dim = read_rotary_dim(fields, sizes.head_dim)
    rope = read_rope(fields, sizes.head_dim, sizes.max_position_embeddings, rotary_dim=rotary_dim)
    windows = (0,) * sizes.n_layers
    config = llama_like.read_config(fields, windows, rope=rope, norm_eps=_EPSILON)
    config = replace(config, post_norm=True)
    bias = fields.boolean("attention_bias", True)
    rules = _rules(config, qkv_bias=bias, o_bias=False, mlp_bias=False)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    inner, hidden = config.intermediate_size, config.hidden_size
    rows = {"gate": (0, inner), "up": (inner, 2 * inner)}
    found = llama_like.rules(
        config, qkv_bias=qkv_bias, o_bias=o_bias, mlp_bias=mlp_bias, norms=_NORMS
    )
    rotary_dim = config.ropes[0].rotary_dim
    order = rotary_order(config.head_dim, rotary_dim, interleaved=True)
    for rule in llama_like.with_head_order(found, order):
        _, number, part, *_ = (*rule.name.split("."), "", "")
        if part not in rows:
            yield rule
            continue
        source = f"model.layers.{number}.mlp.gate_up_proj.weight"
        yield replace(rule, source=source, shape=(2 * inner, hidden), rows=rows[part])


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = replace(read_gguf_config(contents, reads=(ROTARY_DIM,)), post_norm=True)
    rules = renamed(_rules(config, **biases(contents)), _GGUF_NAMES)
    return gguf_blueprint(contents, config, rules)


def _read_moe(fields: Fields) -> Blueprint:
    fields = fields.with_defaults(_DEFAULTS_OF_MOE)
    for name in ("n_group", "topk_group"):
        fields.refuse_unless(name, 1)
    sizes = read_sizes(fields, llama_like.NAMES)
    rotary_dim = read_rotary_dim(fields, sizes.head_dim)
    rope = read_rope(fields, sizes.head_dim, sizes.max_position_embeddings, rotary_dim=rotary_dim)
    windows = (0,) * sizes.n_layers
    config = llama_like.read_config(fields, windows, rope=rope, norm_eps=1e-5)
    n_dense = fields.integer("first_k_dense_replace", 0, MAX_LAYERS)
    n_experts = read_n_experts(fields, "n_routed_experts", sizes.n_layers)
    moe = MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("num_experts_per_tok", 1, n_experts),
        intermediate_size=fields.integer("moe_intermediate_size", 1, MAX_WIDTH),
        normalised=fields.boolean("norm_topk_prob", True),
        in_layer=tuple(layer >= n_dense for layer in range(sizes.n_layers)),
        shared_expert=True,
        shared_gate=False,
        sigmoid=True,
        weight_scale=fields.number("routed_scaling_factor", 1e-6, 1e6, 1.0),
    )
    n_shared = fields.integer("n_shared_experts", 1, _MOST_SHARED)
    if n_shared * moe.intermediate_size > MAX_WIDTH:
        raise fields.error("n_shared_experts", f"up to {MAX_WIDTH} elements in all of them")
    if n_dense < sizes.n_layers:
        config = with_shared_expert(config, moe, n_shared * moe.intermediate_size)
    bias, qk_norm = fields.boolean("attention_bias", False), fields.boolean("use_qk_norm", False)
    rules = _moe_rules(config, qkv_bias=bias, o_bias=False, mlp_bias=False, qk_norm=qk_norm)
    tied = fields.boolean("tie_word_embeddings", False)
    return Blueprint(config, (*rules, *expert_rules(config), *_bias_rules(config)), tied)


def _moe_rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool, qk_norm: bool
) -> Iterator[TensorRule]:
    """Yield a rule for every tensor but those of experts that rows choose."""
    found = llama_like.rules(
        replace(config, moe=None),  # so that layers with experts have their MLP too
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
    )
    rotary_dim = config.ropes[0].rotary_dim
    for rule in llama_like.with_head_order(found, rotary_order(config.head_dim, rotary_dim)):
        source = rule.source
        if is_sparse(config, rule):
            source = source.replace(".mlp.", ".mlp.shared_experts.")
        yield replace(rule, source=source)


def _bias_rules(config: ModelConfig) -> Iterator[TensorRule]:
    moe = config.moe
    for layer in range(config.n_layers):
        if moe is not None and moe.in_layer[layer]:
            source = f"model.layers.{layer}.mlp.gate.e_score_correction_bias"
            yield expert_bias_rule(moe, layer, source)


def _read_gguf_moe(contents: GgufContents) -> Blueprint:
    keys, tensors = contents.keys, contents.tensors
    config = read_gguf_config(
        contents,
        architecture="glm4_moe",
        reads=(ROTARY_DIM,),
        experts=GgufExperts(always=True, shared_expert=True, sigmoid=True, dense_first=True),
    )
    n_predicting = keys.integer("nextn_predict_layers", 0, _MOST_PREDICTING, 0)
    if n_predicting >= config.n_layers:
        raise keys.error("nextn_predict_layers", f"fewer than the {config.n_layers} blocks")
    n_layers = config.n_layers - n_predicting
    config = replace(
        config, n_layers=n_layers, sliding_windows=(0,) * n_layers, layer_ropes=(0,) * n_layers
    )
    if config.moe is not None:
        in_layer = config.moe.in_layer[:n_layers]
        moe = replace(config.moe, shared_gate=False, in_layer=in_layer)
        width = moe.intermediate_size
        config = (
            with_shared_expert(config, moe, width) if any(in_layer) else replace(config, moe=None)
        )
    qk_norm = "blk.0.attn_q_norm.weight" in tensors
    found = _moe_rules(config, **biases(contents), qk_norm=qk_norm)
    rules = (
        *renamed_beside_experts(config, found, _GGUF_NAMES_OF_MOE),
        *gguf_experts.expert_rules(config),
        *expert_bias_rules(config, tensors),
    )
    left_out = tuple(f"blk.{layer}." for layer in range(n_layers, n_layers + n_predicting))
    unused = [name for name in tensors if name.startswith(left_out)] if left_out else []
    return gguf_blueprint(contents, config, rules, unused)


FAMILY = Family(
    hf={"glm4": _read, "glm4_moe": _read_moe},
    classes={"glm4": "Glm4ForCausalLM", "glm4_moe": "Glm4MoeForCausalLM"},
    gguf={"glm4": _read_gguf, "glm4moe": _read_gguf_moe},
)

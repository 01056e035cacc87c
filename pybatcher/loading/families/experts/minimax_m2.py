"""MiniMax-M2: experts selected by sigmoid scores plus biases; q and k normalised over all heads.

A part of each head is rotated. Published files use Mixtral's names of experts; modules use others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...checkpoints.blueprint import Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.limits import MAX_HEAD_DIM
from ...checkpoints.llama_config import read_sizes
from ...checkpoints.model_config import ModelConfig
from ...checkpoints.moe import MoeConfig
from ...checkpoints.rope import read_rope, read_rotary_dim, rotary_order
from ...checkpoints.tensors import TensorRule
from ...parts import gguf_experts, llama_like
from ...parts.experts import (
    W123,
    expert_bias_rule,
    matrix_rules,
    read_n_experts,
    router_rule,
    stacked_parts,
)
from ...parts.family import Family
from ...parts.gguf_contents import GgufContents
from ...parts.gguf_experts import GgufExperts, expert_bias_rules
from ...parts.gguf_llama import ROTARY_DIM, biases, gguf_blueprint, read_gguf_config, renamed

_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
}
_THETA = 5e6


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults(_DEFAULTS)
    fields.refuse_unless("scoring_func", "sigmoid")
    fields.refuse_unless("use_qk_norm", True)
    fields.refuse_unless("qk_norm_type", "per_layer")
    fields.refuse_unless("use_routing_bias", True)
    for name in ("shared_intermediate_size", "attn_type_list"):
        _refuse_other_parts(fields, name)
    sizes = read_sizes(fields, llama_like.NAMES)
    if "rotary_dim" in fields:  # published files have it
        rotary_dim = fields.integer("rotary_dim", 2, MAX_HEAD_DIM)
        fields = fields.with_values({"partial_rotary_factor": rotary_dim / sizes.head_dim})
    rotary_dim = read_rotary_dim(fields, sizes.head_dim)
    rope = read_rope(
        fields,
        sizes.head_dim,
        sizes.max_position_embeddings,
        default_theta=_THETA,
        rotary_dim=rotary_dim,
    )
    config = llama_like.read_config(fields, (0,) * sizes.n_layers, rope=rope)
    n_experts = read_n_experts(fields, "num_local_experts", sizes.n_layers)
    moe = MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("num_experts_per_tok", 1, n_experts),
        intermediate_size=sizes.intermediate_size,
        normalised=True,
        in_layer=(True,) * sizes.n_layers,
        sigmoid=True,
    )
    config = replace(config, whole_qk_norm=True, moe=moe)
    rules = (*_rules(config, o_bias=False, qkv_bias=False, mlp_bias=False), *_expert_rules(config))
    return Blueprint(config, rules, fields.boolean("tie_word_embeddings", False))


def _refuse_other_parts(fields: Fields, name: str) -> None:
    """Raise ModelFormatError for a shared expert, or a layer without full attention."""
    found = fields.get(name)
    ones = isinstance(found, list) and all(kind == 1 for kind in found)
    if found not in (None, 0) and not ones:
        raise fields.error(name, "no shared expert, and full attention in all layers")


def _rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    rotary_dim = config.ropes[0].rotary_dim
    found = llama_like.rules(
        config, qkv_bias=qkv_bias, o_bias=o_bias, mlp_bias=mlp_bias, qk_norm=True
    )
    return llama_like.with_head_order(found, rotary_order(config.head_dim, rotary_dim))


def _expert_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the experts' rules of published files, or of modules, which name the MLP otherwise."""
    moe = config.moe
    assert moe is not None
    for layer in range(config.n_layers):
        published = f"model.layers.{layer}.block_sparse_moe."
        live = f"model.layers.{layer}.mlp."
        router = router_rule(moe, config.hidden_size, layer, f"{published}gate.weight")
        bias = expert_bias_rule(moe, layer, f"{published}e_score_correction_bias")
        for rule in (router, bias):
            yield replace(
                rule, otherwise=replace(rule, source=rule.source.replace(published, live))
            )
        parts = stacked_parts(moe, config.hidden_size, f"{live}experts.")
        yield from matrix_rules(parts, layer, f"{published}experts.", W123)


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = read_gguf_config(
        contents,
        architecture="minimax_m2",
        reads=(ROTARY_DIM,),
        experts=GgufExperts(always=True, sigmoid=True),
    )
    config = replace(config, whole_qk_norm=True)
    rules = (
        *renamed(_rules(config, **biases(contents))),
        *gguf_experts.expert_rules(config),
        *expert_bias_rules(config, contents.tensors),
    )
    return gguf_blueprint(contents, config, rules)


FAMILY = Family(
    hf={"minimax_m2": _read},
    classes={"minimax_m2": "MiniMaxM2ForCausalLM"},
    gguf={"minimax-m2": _read_gguf},
)

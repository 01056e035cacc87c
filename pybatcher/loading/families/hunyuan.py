"""HunYuan V1: a Llama with norms of q and k after their rotation, dense or MoE.

A fixed `alpha` of the scaling stretches the base of rope. Every layer of a MoE model has experts
and a shared expert without a gate, all as wide as `intermediate_size`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.llama_config import read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.moe import MoeConfig
from ..checkpoints.rope import read_rope
from ..checkpoints.tensors import TensorRule
from ..parts import gguf_experts, llama_like
from ..parts.experts import (
    GATE_UP_DOWN,
    is_sparse,
    matrix_rules,
    read_n_experts,
    router_rule,
    stacked_parts,
)
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_experts import GgufExperts
from ..parts.gguf_llama import (
    biases,
    gguf_blueprint,
    read_gguf_config,
    renamed,
    renamed_beside_experts,
)

_NORMS = {".q_norm.": ".query_layernorm.", ".k_norm.": ".key_layernorm."}


def _read(fields: Fields) -> Blueprint:
    config = _read_config(fields)
    return _blueprint(fields, config, _rules(config, **_biases(fields)))


def _read_config(fields: Fields) -> ModelConfig:
    sizes = read_sizes(fields, llama_like.NAMES)
    rope = read_rope(fields, sizes.head_dim, sizes.max_position_embeddings, has_alpha=True)
    fields.refuse_unless("use_qk_norm", True)
    fields.refuse_unless("use_cla", False)
    config = llama_like.read_config(fields, (0,) * sizes.n_layers, rope=rope, norm_eps=1e-5)
    return replace(config, qk_norm_after_rope=True)


def _biases(fields: Fields) -> dict[str, bool]:
    bias = fields.boolean("attention_bias", False)
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": False}


def _blueprint(fields: Fields, config: ModelConfig, rules: Iterable[TensorRule]) -> Blueprint:
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    """Yield a rule for every tensor but those of experts that rows choose."""
    for rule in llama_like.rules(
        replace(config, moe=None),  # layers with experts have an MLP too
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=True,
    ):
        source = rule.source
        for theirs, own in _NORMS.items():
            source = source.replace(theirs, own)
        there = ".mlp.shared_mlp." if is_sparse(config, rule) else ".mlp."
        yield replace(rule, source=source.replace(".mlp.", there))


def _read_moe(fields: Fields) -> Blueprint:
    config = _read_config(fields)
    fields = fields.with_defaults({"num_experts": 1})
    n_experts = read_n_experts(fields, "num_experts", config.n_layers)
    of_layers = {
        name: _of_all_layers(fields, name, config.n_layers)
        for name in ("moe_topk", "moe_intermediate_size", "num_shared_expert")
    }
    given = fields.with_values(of_layers)
    given.refuse_unless("moe_intermediate_size", config.intermediate_size)
    given.refuse_unless("num_shared_expert", 1)
    moe = MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=given.integer("moe_topk", 1, n_experts, 1),
        intermediate_size=config.intermediate_size,
        normalised=True,
        in_layer=(True,) * config.n_layers,
        shared_expert=True,
        shared_gate=False,
    )
    config = replace(config, moe=moe)
    rules = _rules(config, **_biases(fields))
    return _blueprint(fields, config, (*rules, *_expert_rules(config, moe)))


def _of_all_layers(fields: Fields, name: str, n_layers: int) -> object:
    """Return a value that a file may list for each layer, if it is the same in all of them."""
    value = fields.get(name)
    if not isinstance(value, list):
        return value
    if len(value) != n_layers or any(other != value[0] for other in value):
        raise fields.error(name, f"the same number for each of {n_layers} layers")
    return value[0]


def _expert_rules(config: ModelConfig, moe: MoeConfig) -> Iterator[TensorRule]:
    for layer in range(config.n_layers):
        there = f"model.layers.{layer}.mlp."
        yield router_rule(moe, config.hidden_size, layer, f"{there}gate.wg.weight")
        experts = f"{there}experts."
        parts = stacked_parts(moe, config.hidden_size, experts)
        yield from matrix_rules(parts, layer, experts, GATE_UP_DOWN)


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = read_gguf_config(contents, architecture="hunyuan_v1_dense")
    config = replace(config, qk_norm_after_rope=True)
    return gguf_blueprint(contents, config, renamed(_rules(config, **biases(contents))))


def _read_gguf_moe(contents: GgufContents) -> Blueprint:
    experts = GgufExperts(always=True, wide_as_mlp=True, shared_expert=True)
    config = read_gguf_config(contents, architecture="hunyuan_v1_moe", experts=experts)
    if config.moe is not None:
        contents.keys.refuse_unless("expert_shared_feed_forward_length", config.intermediate_size)
        config = replace(config, moe=replace(config.moe, shared_gate=False))
    config = replace(config, qk_norm_after_rope=True)
    rules = renamed_beside_experts(config, _rules(config, **biases(contents)))
    return gguf_blueprint(contents, config, (*rules, *gguf_experts.expert_rules(config)))


FAMILY = Family(
    hf={"hunyuan_v1_dense": _read, "hunyuan_v1_moe": _read_moe},
    classes={
        "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
        "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    },
    gguf={"hunyuan-dense": _read_gguf, "hunyuan-moe": _read_gguf_moe},
)

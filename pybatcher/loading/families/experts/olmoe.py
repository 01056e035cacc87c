"""OLMoE: experts in every layer; q and k are normalised over all heads together."""

from __future__ import annotations

from dataclasses import replace

from ...checkpoints.blueprint import Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.moe import MoeConfig
from ...parts import gguf_experts, llama_like
from ...parts.experts import expert_rules, read_n_experts
from ...parts.family import Family
from ...parts.gguf_contents import GgufContents
from ...parts.gguf_experts import GgufExperts
from ...parts.gguf_llama import biases, gguf_blueprint, read_gguf_config, renamed

_DEFAULTS = {"num_experts": 64, "num_experts_per_tok": 8}


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults(_DEFAULTS)
    fields.refuse_unless("clip_qkv")
    n_layers = llama_like.read_n_layers(fields)
    config = llama_like.read_config(fields, (0,) * n_layers, norm_eps=1e-5)
    n_experts = read_n_experts(fields, "num_experts", n_layers)
    moe = MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("num_experts_per_tok", 1, n_experts),
        intermediate_size=config.intermediate_size,
        normalised=fields.boolean("norm_topk_prob", False),
        in_layer=(True,) * n_layers,
    )
    config = replace(config, whole_qk_norm=True, moe=moe)
    bias = fields.boolean("attention_bias", False)
    rules = llama_like.rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=False, qk_norm=True)
    tied = fields.boolean("tie_word_embeddings", False)
    return Blueprint(config, (*rules, *expert_rules(config)), tied)


def _read_gguf(contents: GgufContents) -> Blueprint:
    experts = GgufExperts(always=True, wide_as_mlp=True, normalised=False)
    config = replace(read_gguf_config(contents, experts=experts), whole_qk_norm=True)
    rules = renamed(llama_like.rules(config, **biases(contents), qk_norm=True))
    return gguf_blueprint(contents, config, (*rules, *gguf_experts.expert_rules(config)))


FAMILY = Family(
    hf={"olmoe": _read},
    classes={"olmoe": "OlmoeForCausalLM"},
    gguf={"olmoe": _read_gguf},
)

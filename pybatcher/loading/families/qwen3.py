"""Qwen3, dense and mixtures of experts: a Llama whose q and k are normalised per head."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_POSITIONS, MAX_WIDTH
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.moe import MoeConfig
from ..parts import gguf_experts, llama_like
from ..parts.experts import expert_rules, read_n_experts, read_sparse_layers
from ..parts.family import Family, ModelClasses
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_experts import GgufExperts
from ..parts.gguf_llama import biases, gguf_blueprint, read_gguf_config, renamed
from ..parts.qwen_windows import read_windows

_WINDOW = 4096
_HEAD_DIM = 128


def _read(fields: Fields) -> Blueprint:
    return _blueprint(fields, llama_like.read_config(fields, read_windows(fields), _HEAD_DIM))


def _read_moe(fields: Fields) -> Blueprint:
    fields = fields.with_defaults({"sliding_window": _WINDOW})
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    if not fields.boolean("use_sliding_window", False):
        window = 0
    config = llama_like.read_config(fields, (window,) * llama_like.read_n_layers(fields))
    return _blueprint(fields, replace(config, moe=_read_experts(fields, config.n_layers)))


def _blueprint(fields: Fields, config: ModelConfig) -> Blueprint:
    bias = fields.boolean("attention_bias", False)
    rules = llama_like.rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=False, qk_norm=True)
    tied = fields.boolean("tie_word_embeddings", False)
    return Blueprint(config, (*rules, *expert_rules(config)), tied)


def _read_experts(fields: Fields, n_layers: int) -> MoeConfig | None:
    """Return the configuration of the experts; None: all layers are dense."""
    name = "num_experts" if "num_experts" in fields else "num_local_experts"
    n_experts = read_n_experts(fields, name, n_layers)
    in_layer = read_sparse_layers(fields, n_layers)
    moe = MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("num_experts_per_tok", 1, n_experts),
        intermediate_size=fields.integer("moe_intermediate_size", 1, MAX_WIDTH),
        normalised=fields.boolean("norm_topk_prob", False),
        in_layer=in_layer,
    )
    return moe if any(in_layer) else None


def _read_gguf(contents: GgufContents) -> Blueprint:
    return _gguf_blueprint(contents, read_gguf_config(contents))


def _read_gguf_moe(contents: GgufContents) -> Blueprint:
    experts = GgufExperts(always=True)
    config = read_gguf_config(contents, architecture="qwen3_moe", experts=experts)
    return _gguf_blueprint(contents, config)


def _gguf_blueprint(contents: GgufContents, config: ModelConfig) -> Blueprint:
    rules = renamed(llama_like.rules(config, **biases(contents), qk_norm=True))
    return gguf_blueprint(contents, config, (*rules, *gguf_experts.expert_rules(config)))


FAMILY = Family(
    hf={"qwen3": _read, "qwen3_moe": _read_moe},
    classes={
        "qwen3": ModelClasses(model="Qwen3ForCausalLM", base="Qwen3Model"),
        "qwen3_moe": "Qwen3MoeForCausalLM",
    },
    gguf={"qwen3": _read_gguf, "qwen3moe": _read_gguf_moe},
)

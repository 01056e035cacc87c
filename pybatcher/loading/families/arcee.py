"""Arcee (AFM-4.5B): a Llama whose MLP has no gate, and the square of ReLU as its activation."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.model_config import ModelConfig
from ..parts import llama_like
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import biases, from_pairs, gguf_blueprint, read_gguf_config, renamed


def _read(fields: Fields) -> Blueprint:
    windows = (0,) * llama_like.read_n_layers(fields)
    config = llama_like.read_config(fields, windows, norm_eps=1e-5, hidden_act=("relu2",))
    config = _with_mlp(config)
    bias = fields.boolean("attention_bias", False)
    rules = llama_like.rules(
        config, qkv_bias=bias, o_bias=bias, mlp_bias=fields.boolean("mlp_bias", False)
    )
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _with_mlp(config: ModelConfig) -> ModelConfig:
    return replace(config, activation="relu_squared", gated_mlp=False)


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = _with_mlp(read_gguf_config(contents))
    rules = renamed(llama_like.rules(config, **biases(contents)))
    return gguf_blueprint(contents, config, from_pairs(rules, config.head_dim))


FAMILY = Family(
    hf={"arcee": _read},
    classes={"arcee": "ArceeForCausalLM"},
    gguf={"arcee": _read_gguf},
)

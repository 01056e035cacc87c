"""Seed-OSS: a Llama whose q, k and v have biases; o and the MLP may have biases."""

from __future__ import annotations

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..parts import llama_like
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import biases, gguf_blueprint, read_gguf_config, renamed

_HEAD_DIM = 128
_KV_HEADS = 8
_GGUF_NAMES = {"mlp_norm": "post_attention_norm"}


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults({"num_key_value_heads": _KV_HEADS, "head_dim": _HEAD_DIM})
    config = llama_like.read_config(fields, (0,) * llama_like.read_n_layers(fields))
    rules = llama_like.rules(
        config,
        qkv_bias=fields.boolean("attention_bias", True),
        o_bias=fields.boolean("attention_out_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
    )
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = read_gguf_config(contents)
    rules = llama_like.rules(config, **biases(contents))
    return gguf_blueprint(contents, config, renamed(rules, _GGUF_NAMES))


FAMILY = Family(
    hf={"seed_oss": _read},
    classes={"seed_oss": "SeedOssForCausalLM"},
    gguf={"seed_oss": _read_gguf},
)

"""Qwen2 and 2.5: a Llama whose q, k and v have biases, with sliding windows in upper layers."""

from __future__ import annotations

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..parts import llama_like
from ..parts.family import Family, ModelClasses
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import biases, gguf_blueprint, read_gguf_config, renamed
from ..parts.qwen_windows import read_windows


def _read(fields: Fields) -> Blueprint:
    config = llama_like.read_config(fields, read_windows(fields))
    rules = llama_like.rules(config, qkv_bias=True, o_bias=False, mlp_bias=False)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = read_gguf_config(contents)
    rules = llama_like.rules(config, **biases(contents, qkv_bias=True))
    return gguf_blueprint(contents, config, renamed(rules))


FAMILY = Family(
    hf={"qwen2": _read},
    classes={"qwen2": ModelClasses(model="Qwen2ForCausalLM", base="Qwen2Model")},
    gguf={"qwen2": _read_gguf},
)

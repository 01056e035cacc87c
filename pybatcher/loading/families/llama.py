"""Llama 2 and 3, models with the same files (SmolLM2, Yi), and InternLM3, with another config.json.

Mistral and Mixtral are `llama` files in llama.cpp, too.
"""

from __future__ import annotations

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..parts import llama_like
from ..parts.family import Family, ModelClasses
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_experts import GgufExperts, expert_rules
from ..parts.gguf_llama import biases, from_pairs, gguf_blueprint, read_gguf_config, renamed

_HEAD_DIM_OF_INTERNLM3 = 128


def _read(fields: Fields) -> Blueprint:
    config = llama_like.read_config(fields, (0,) * llama_like.read_n_layers(fields))
    attention_bias = fields.boolean("attention_bias", False)
    rules = llama_like.rules(
        config,
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        mlp_bias=fields.boolean("mlp_bias", False),
    )
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _read_internlm3(fields: Fields) -> Blueprint:
    """Read an InternLM3, whose fields `qkv_bias` and `bias` enable biases.

    transformers saves these fields as `attention_bias` and `mlp_bias`.
    """
    windows = (0,) * llama_like.read_n_layers(fields)
    config = llama_like.read_config(fields, windows, _HEAD_DIM_OF_INTERNLM3, norm_eps=1e-5)
    qkv_bias = fields.boolean("qkv_bias", fields.boolean("attention_bias", False))
    bias = fields.boolean("bias", fields.boolean("mlp_bias", False))
    rules = llama_like.rules(config, qkv_bias=qkv_bias, o_bias=bias, mlp_bias=bias)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = read_gguf_config(contents, experts=GgufExperts(wide_as_mlp=True))
    rules = renamed(llama_like.rules(config, **biases(contents)))
    every = (*from_pairs(rules, config.head_dim), *expert_rules(config))
    return gguf_blueprint(contents, config, every)


FAMILY = Family(
    hf={"llama": _read, "internlm3": _read_internlm3},
    classes={
        "llama": ModelClasses(model="LlamaForCausalLM", base="LlamaModel"),
        "internlm3": ModelClasses(model="LlamaForCausalLM", published="InternLM3ForCausalLM"),
    },
    gguf={"llama": _read_gguf},
)

"""InternLM3: a Llama whose config.json has biases and names of its own for them."""

from __future__ import annotations

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..parts import llama_like
from ..parts.family import Family, ModelClasses

_HEAD_DIM = 128


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of an internlm3 config.json. Raises ModelFormatError.

    `qkv_bias` and `bias` are `attention_bias` and `mlp_bias` where transformers has saved it.
    """
    windows = (0,) * llama_like.read_n_layers(fields)
    config = llama_like.read_config(fields, windows, _HEAD_DIM, norm_eps=1e-5)
    qkv_bias = fields.boolean("qkv_bias", fields.boolean("attention_bias", False))
    bias = fields.boolean("bias", fields.boolean("mlp_bias", False))
    rules = llama_like.rules(config, qkv_bias=qkv_bias, o_bias=bias, mlp_bias=bias)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


FAMILY = Family(
    hf={"internlm3": _read},
    classes={"internlm3": ModelClasses(model="LlamaForCausalLM", published="InternLM3ForCausalLM")},
)

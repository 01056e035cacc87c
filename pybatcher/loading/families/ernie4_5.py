"""ERNIE 4.5: a Llama with rope in interleaved pairs; `use_bias` applies to all matrices."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.llama_config import read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.rope import read_rope, rotary_order
from ..checkpoints.tensors import TensorRule
from ..parts import llama_like
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import biases, gguf_blueprint, read_gguf_config, renamed

_THETA = 5e5


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults({"num_key_value_heads": 2, "head_dim": 128})
    sizes = read_sizes(fields, llama_like.NAMES)
    rope = read_rope(fields, sizes.head_dim, sizes.max_position_embeddings, default_theta=_THETA)
    config = llama_like.read_config(fields, (0,) * sizes.n_layers, rope=rope, norm_eps=1e-5)
    bias = fields.boolean("use_bias", False)
    rules = _rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=bias)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", True))


def _rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    order = rotary_order(config.head_dim, config.head_dim, interleaved=True)
    found = llama_like.rules(config, qkv_bias=qkv_bias, o_bias=o_bias, mlp_bias=mlp_bias)
    return llama_like.with_head_order(found, order)


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = read_gguf_config(contents)
    return gguf_blueprint(contents, config, renamed(_rules(config, **biases(contents))))


FAMILY = Family(
    hf={"ernie4_5": _read},
    classes={"ernie4_5": "Ernie4_5ForCausalLM"},
    gguf={"ernie4_5": _read_gguf},
)

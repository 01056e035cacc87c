"""StableLM and StableLM 2 1.6B: a Llama with LayerNorm and partial rope.

The 12B, which normalises q and k and computes attention and MLP in parallel, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...checkpoints.blueprint import Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.limits import MAX_VOCABULARY
from ...checkpoints.llama_config import llama_config, read_sizes
from ...checkpoints.model_config import ModelConfig
from ...checkpoints.rope import read_rope, read_rotary_dim, rotary_order
from ...checkpoints.tensors import TensorRule
from ...parts import llama_like
from ...parts.family import Family
from ...parts.gguf_contents import GgufContents
from ...parts.gguf_llama import ROTARY_DIM, biases, gguf_blueprint, read_gguf_config, renamed


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults({"partial_rotary_factor": 0.25})
    fields.refuse_unless("hidden_act", "silu", "swish")
    fields.refuse_unless("qk_layernorm", False)
    fields.refuse_unless("use_parallel_residual", False)
    sizes = read_sizes(fields, llama_like.NAMES)
    rotary_dim = read_rotary_dim(fields, sizes.head_dim)
    config = llama_config(
        sizes,
        architecture="stablelm",
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCABULARY),
        norm_eps=fields.number("layer_norm_eps", 0.0, 1.0, 1e-5),
        rope=read_rope(
            fields, sizes.head_dim, sizes.max_position_embeddings, rotary_dim=rotary_dim
        ),
        sliding_windows=(0,) * sizes.n_layers,
    )
    config = replace(config, norm="layer")
    bias = fields.boolean("use_qkv_bias", False)
    rules = _rules(config, qkv_bias=bias, o_bias=False, mlp_bias=False)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    rotary_dim = config.ropes[0].rotary_dim
    found = llama_like.rules(
        config, qkv_bias=qkv_bias, o_bias=o_bias, mlp_bias=mlp_bias, norm_bias=True
    )
    return llama_like.with_head_order(found, rotary_order(config.head_dim, rotary_dim))


def _read_gguf(contents: GgufContents) -> Blueprint:
    contents.keys.refuse_unless("use_parallel_residual", False)
    config = read_gguf_config(contents, reads=(ROTARY_DIM,), norm="layer")
    return gguf_blueprint(contents, config, renamed(_rules(config, **biases(contents))))


FAMILY = Family(
    hf={"stablelm": _read},
    classes={"stablelm": "StableLmForCausalLM"},
    gguf={"stablelm": _read_gguf},
)

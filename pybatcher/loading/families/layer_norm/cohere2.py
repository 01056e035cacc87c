"""Cohere 2 (Command R7B, Command A): attention and MLP in parallel, after one norm without a bias.

Three layers of four have a sliding window and rotate interleaved pairs of each head. The others
attend to all positions and do not rotate q and k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...checkpoints.blueprint import Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.layer_types import read_sliding_layers
from ...checkpoints.limits import MAX_POSITIONS, MAX_VOCABULARY
from ...checkpoints.llama_config import llama_config, read_sizes
from ...checkpoints.model_config import ModelConfig
from ...checkpoints.rope import read_rope, rotary_order
from ...checkpoints.tensors import TensorRule
from ...parts import llama_like
from ...parts.family import Family
from ...parts.gguf_contents import GgufContents
from ...parts.gguf_llama import (
    WINDOW,
    biases,
    gguf_blueprint,
    read_gguf_config,
    renamed,
    sliding_layers,
)

_PERIOD = 4
_NORMS = {"attn_norm": "input_layernorm"}


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults({"sliding_window": 4096})
    fields.refuse_unless("hidden_act", "silu", "swish")
    for name in ("use_qk_norm", "use_parallel_embedding"):  # fields of published files
        fields.refuse_unless(name, False)
    fields.refuse_unless("use_parallel_block", True)
    fields.refuse_unless("use_gated_activation", True)
    fields.refuse_unless("position_embedding_type", "rope_gptj")
    fields.refuse_unless("rotary_pct", 1.0, 1)
    sizes = read_sizes(fields, llama_like.NAMES)
    window = fields.integer("sliding_window", 1, MAX_POSITIONS)
    sliding = read_sliding_layers(fields, sizes.n_layers, _PERIOD)
    config = llama_config(
        sizes,
        architecture="cohere2",
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCABULARY),
        norm_eps=fields.number("layer_norm_eps", 0.0, 1.0, 1e-5),
        rope=read_rope(fields, sizes.head_dim, sizes.max_position_embeddings),
        sliding_windows=(0,) * sizes.n_layers,
    )
    scale = fields.number("logit_scale", 1e-6, 1e6, 0.0625)
    config = _with_parts(config, window, sliding, scale)
    bias = fields.boolean("attention_bias", False)
    rules = _rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=False)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", True))


def _with_parts(
    config: ModelConfig, window: int, sliding: tuple[bool, ...], logit_scale: float
) -> ModelConfig:
    """Return a Llama-like configuration with the parts of Cohere 2."""
    return replace(
        config,
        norm="layer",
        norm_bias=False,
        parallel_blocks=True,
        logit_scale=logit_scale,
        layer_ropes=tuple(0 if slides else -1 for slides in sliding),
        sliding_windows=tuple(window if slides else 0 for slides in sliding),
    )


def _rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    found = llama_like.rules(
        config, qkv_bias=qkv_bias, o_bias=o_bias, mlp_bias=mlp_bias, norms=_NORMS
    )
    order = rotary_order(config.head_dim, config.head_dim, interleaved=True)
    return llama_like.with_head_order(found, order)


def _read_gguf(contents: GgufContents) -> Blueprint:
    keys = contents.keys
    config = read_gguf_config(contents, reads=(WINDOW,), norm="layer")
    window = keys.integer(WINDOW, 1, MAX_POSITIONS)
    sliding = tuple(sliding_layers(keys, config.n_layers, _PERIOD))
    config = _with_parts(config, window, sliding, keys.number("logit_scale", 1e-6, 1e6))
    return gguf_blueprint(contents, config, renamed(_rules(config, **biases(contents))))


FAMILY = Family(
    hf={"cohere2": _read},
    classes={"cohere2": "Cohere2ForCausalLM"},
    gguf={"cohere2": _read_gguf},
)

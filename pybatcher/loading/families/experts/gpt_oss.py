"""gpt-oss: attention sinks, a sliding window in every other layer, experts with biases.

Published checkpoints have the experts of a layer in MXFP4, with alternating rows of gate and up. A
model that transformers saves after dequantising them has (experts, inputs, outputs), as live
modules do. Both forms are read.

OpenAI 2025, gpt-oss-120b & gpt-oss-20b model card (arXiv:2508.10925).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ...checkpoints.blueprint import Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.layer_types import read_sliding_layers
from ...checkpoints.limits import MAX_POSITIONS
from ...checkpoints.llama_config import read_sizes
from ...checkpoints.model_config import ModelConfig
from ...checkpoints.moe import MoeConfig
from ...checkpoints.rope import Rope, read_rope
from ...checkpoints.tensors import TensorRule
from ...parts import gguf_experts, llama_like
from ...parts.experts import read_n_experts
from ...parts.family import Family
from ...parts.gguf_contents import GgufContents
from ...parts.gguf_experts import GgufExperts
from ...parts.gguf_llama import (
    WINDOW,
    biases,
    gguf_blueprint,
    read_gguf_config,
    renamed,
    sliding_layers,
)

_SWIGLU_ALPHA = 1.702
_SWIGLU_LIMIT = 7.0

_GGUF_NAMES = {"mlp_norm": "post_attention_norm", "sinks": "attn_sinks"}

_HEAD_DIM = 64
_KV_HEADS = 8
_WINDOW = 128
_THETA = 150000.0
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""transformers' default of rope_parameters."""


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a gpt_oss config.json. Raises ModelFormatError."""
    fields = fields.with_defaults({"num_key_value_heads": _KV_HEADS})
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, _WINDOW)
    sliding = read_sliding_layers(fields, llama_like.read_n_layers(fields), 2)
    windows = tuple(window if slides else 0 for slides in sliding)
    config = llama_like.read_config(fields, windows, _HEAD_DIM, _read_rope(fields), norm_eps=1e-5)
    config = replace(config, moe=_read_moe(fields, config))
    bias = fields.boolean("attention_bias", True)
    rules = (
        *_attention_rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=False),
        *_expert_rules(config),
    )
    return Blueprint(config, rules, fields.boolean("tie_word_embeddings", False))


def _read_rope(fields: Fields) -> Rope:
    sizes = read_sizes(fields, llama_like.NAMES, _HEAD_DIM)
    if "rope_scaling" not in fields and "rope_parameters" not in fields:
        fields = Fields({"rope_theta": fields.get("rope_theta"), "rope_scaling": _YARN}, "gpt_oss")
    return read_rope(fields, sizes.head_dim, sizes.max_position_embeddings, default_theta=_THETA)


def _read_moe(fields: Fields, config: ModelConfig) -> MoeConfig:
    n_experts = read_n_experts(fields, "num_local_experts", config.n_layers)
    return MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("num_experts_per_tok", 1, n_experts),
        intermediate_size=config.intermediate_size,
        normalised=True,
        in_layer=(True,) * config.n_layers,
        swiglu_limit=fields.number("swiglu_limit", 1e-3, 1e6, _SWIGLU_LIMIT),
        swiglu_alpha=fields.number("swiglu_alpha", 1e-3, 1e3, _SWIGLU_ALPHA),
    )


def _attention_rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    """Yield the rules of `llama_like.rules`, and those of sinks."""
    yield from llama_like.rules(config, qkv_bias=qkv_bias, o_bias=o_bias, mlp_bias=mlp_bias)
    for layer in range(config.n_layers):
        yield TensorRule(
            name=f"layers.{layer}.sinks.weight",
            source=f"model.layers.{layer}.self_attn.sinks",
            shape=(config.n_heads,),
        )


class _Part(NamedTuple):
    """One matrix of every expert, inside a tensor of all experts of a layer."""

    name: str
    source: str
    n_outputs: int  # outputs of the tensor
    n_inputs: int
    first: int  # first row of the matrix in the tensor
    step: int


def _expert_rules(config: ModelConfig) -> Iterator[TensorRule]:
    assert config.moe is not None
    n, hidden, inner = config.moe.n_experts, config.hidden_size, config.moe.intermediate_size
    parts = (
        _Part("gate", "gate_up_proj", 2 * inner, hidden, 0, 2),
        _Part("up", "gate_up_proj", 2 * inner, hidden, 1, 2),
        _Part("down", "down_proj", hidden, inner, 0, 1),
    )
    for layer in range(config.n_layers):
        here, there = f"layers.{layer}.", f"model.layers.{layer}.mlp."
        for kind, shape in (("weight", (n, hidden)), ("bias", (n,))):
            yield TensorRule(
                name=f"{here}router.{kind}", source=f"{there}router.{kind}", shape=shape
            )
        for part in parts:
            source = f"{there}experts.{part.source}"
            for expert in range(n):
                weight = TensorRule(
                    name=f"{here}experts.{expert}.{part.name}.weight",
                    source=f"{source}_blocks",
                    shape=(n, part.n_outputs, part.n_inputs),
                    index=expert,
                    rows=(part.first, part.n_outputs),
                    row_step=part.step,
                )
                plain = replace(
                    weight,
                    source=source,
                    shape=(n, part.n_inputs, part.n_outputs),
                    transposed=True,
                )
                yield replace(weight, otherwise=plain)
                yield replace(
                    weight,
                    name=f"{here}experts.{expert}.{part.name}.bias",
                    source=f"{source}_bias",
                    shape=(n, part.n_outputs),
                )


def _read_gguf(contents: GgufContents) -> Blueprint:
    experts = GgufExperts(
        always=True,
        wide_as_mlp=True,
        softmax_of_chosen=True,
        swiglu_limit=_SWIGLU_LIMIT,
        swiglu_alpha=_SWIGLU_ALPHA,
    )
    config = read_gguf_config(
        contents, architecture="gpt_oss", reads=(WINDOW,), experts=experts, truncates_yarn=False
    )
    window = contents.keys.integer(WINDOW, 1, MAX_POSITIONS)
    sliding = sliding_layers(contents.keys, config.n_layers, 2)
    windows = tuple(window if slides else 0 for slides in sliding)
    config = replace(config, sliding_windows=windows)
    rules = renamed(_attention_rules(config, **biases(contents)), _GGUF_NAMES)
    of_experts = gguf_experts.expert_rules(config, has_biases=True)
    return gguf_blueprint(contents, config, (*rules, *of_experts))


FAMILY = Family(
    hf={"gpt_oss": _read},
    classes={"gpt_oss": "GptOssForCausalLM"},
    gguf={"gpt-oss": _read_gguf},
    quant_methods=("mxfp4",),
)

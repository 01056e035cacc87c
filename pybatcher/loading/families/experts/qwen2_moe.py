"""Qwen2-MoE and Qwen1.5-MoE: experts, and a gated shared expert for all rows.

The MLP of layers without experts has another width. q, k and v have biases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...checkpoints.blueprint import Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.limits import MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH
from ...checkpoints.model_config import LayerShape, ModelConfig
from ...checkpoints.moe import MoeConfig
from ...checkpoints.tensors import TensorRule
from ...parts import gguf_experts, llama_like
from ...parts.experts import expert_rules, read_n_experts, read_sparse_layers, shared_expert_rules
from ...parts.family import Family
from ...parts.gguf_contents import GgufContents
from ...parts.gguf_experts import SHARED_EXPERT_NAMES, GgufExperts
from ...parts.gguf_llama import biases, gguf_blueprint, read_gguf_config, renamed

_SHARED_WIDTH = "shared_expert_intermediate_size"
_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 16,
    "moe_intermediate_size": 1408,
    _SHARED_WIDTH: 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "sliding_window": 4096,
}


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults(_DEFAULTS)
    n_layers = llama_like.read_n_layers(fields)
    config = llama_like.read_config(fields, _read_windows(fields, n_layers))
    moe = _read_experts(fields, n_layers)
    if moe is not None:
        width = fields.integer(_SHARED_WIDTH, 1, MAX_WIDTH)
        config = _with_experts(config, moe, width)
    bias = fields.boolean("qkv_bias", True)
    rules = (*_rules(config, qkv_bias=bias, o_bias=False), *expert_rules(config))
    return Blueprint(config, rules, fields.boolean("tie_word_embeddings", False))


def _read_windows(fields: Fields, n_layers: int) -> tuple[int, ...]:
    """Return the windows: by `layer_types`, or every second layer before `max_window_layers`."""
    window = fields.integer("sliding_window", 0, MAX_POSITIONS, 0)
    if not fields.boolean("use_sliding_window", False):
        window = 0
    if fields.get("layer_types") is not None:
        return llama_like.read_layer_windows(fields, window, n_layers)
    end = fields.integer("max_window_layers", 0, MAX_LAYERS, 28)
    return tuple(window if layer % 2 == 0 and layer < end else 0 for layer in range(n_layers))


def _read_experts(fields: Fields, n_layers: int) -> MoeConfig | None:
    """Return the configuration of the experts; None: all layers are dense."""
    n_experts = read_n_experts(fields, "num_experts", n_layers)
    in_layer = read_sparse_layers(fields, n_layers)
    moe = MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("num_experts_per_tok", 1, n_experts),
        intermediate_size=fields.integer("moe_intermediate_size", 1, MAX_WIDTH),
        normalised=fields.boolean("norm_topk_prob", False),
        in_layer=in_layer,
        shared_expert=True,
    )
    return moe if any(in_layer) else None


def _with_experts(config: ModelConfig, moe: MoeConfig, shared_width: int) -> ModelConfig:
    """Return the configuration with experts. shared_width: the width of the shared expert."""
    if all(moe.in_layer):
        return replace(config, moe=moe, intermediate_size=shared_width)
    shapes = tuple(
        LayerShape(
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=shared_width if sparse else config.intermediate_size,
        )
        for sparse in moe.in_layer
    )
    return replace(config, moe=moe, layer_shapes=shapes)


def _rules(config: ModelConfig, *, qkv_bias: bool, o_bias: bool) -> Iterator[TensorRule]:
    """Yield a rule for every tensor except those of routed experts."""
    sparse = (False,) * config.n_layers if config.moe is None else config.moe.in_layer
    for rule in llama_like.rules(config, qkv_bias=qkv_bias, o_bias=o_bias, mlp_bias=False):
        _, number, part, *_ = (*rule.name.split("."), "", "")
        if part not in ("gate", "up", "down") or not sparse[int(number)]:
            yield rule
    for layer in range(config.n_layers):
        if sparse[layer]:
            yield from shared_expert_rules(config, layer)


def _read_gguf(contents: GgufContents) -> Blueprint:
    """Read a file, in which every layer has experts."""
    keys = contents.keys
    config = read_gguf_config(
        contents,
        architecture="qwen2_moe",
        experts=GgufExperts(always=True, shared_expert=True, normalised=False),
    )
    width = keys.integer(
        "expert_shared_feed_forward_length", 1, MAX_WIDTH, config.intermediate_size
    )
    config = replace(config, intermediate_size=width)
    found = biases(contents, qkv_bias=True)
    rules = _rules(config, qkv_bias=found["qkv_bias"], o_bias=found["o_bias"])
    of_gguf = (
        replace(rule, shape=rule.shape[1:], index=None) if rule.index is not None else rule
        for rule in renamed(rules, SHARED_EXPERT_NAMES)
    )
    return gguf_blueprint(contents, config, (*of_gguf, *gguf_experts.expert_rules(config)))


FAMILY = Family(
    hf={"qwen2_moe": _read},
    classes={"qwen2_moe": "Qwen2MoeForCausalLM"},
    gguf={"qwen2moe": _read_gguf},
)

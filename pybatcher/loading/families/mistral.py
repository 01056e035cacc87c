"""Mistral, Mixtral, Ministral: a Llama with sliding windows in every layer, or by layer.

Mixtral has experts; Ministral 3 has YaRN, and queries scaled by position. Mistral 3 (`mistral3`)
contains a text model of type mistral or ministral3, and a Pixtral as its vision tower.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..checkpoints.blueprint import TEXT_PREFIXES, Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_POSITIONS
from ..checkpoints.llama_config import read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.moe import MoeConfig
from ..checkpoints.rope import read_original_positions, read_rope
from ..checkpoints.tensors import TensorRule
from ..parts import llama_like
from ..parts.experts import W123, matrix_rules, read_n_experts, router_rule, stacked_parts
from ..parts.family import Family, ModelClasses
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import (
    YARN_LOG_MULTIPLIER,
    biases,
    from_pairs,
    gguf_blueprint,
    read_gguf_config,
    renamed,
)
from ..parts.gguf_rope import original_positions
from ..parts.pixtral import with_pixtral

_WINDOW = 4096
_QUERY_BETA = "llama_4_scaling_beta"
_HEAD_DIM_OF_MINISTRAL_3 = 128
_TEXT_MODELS = ("mistral", "ministral3")


def _read(fields: Fields) -> Blueprint:
    """Read a mistral or ministral config.json."""
    fields = fields.with_defaults({"sliding_window": _WINDOW})
    n_layers = llama_like.read_n_layers(fields)
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    windows = (window,) * n_layers
    if fields.get("layer_types") is not None:  # a Ministral of either type, as in transformers
        windows = llama_like.read_layer_windows(fields, window, n_layers)
    config = llama_like.read_config(fields, windows)
    rules = llama_like.rules(config, qkv_bias=False, o_bias=False, mlp_bias=False)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _read_mixtral(fields: Fields) -> Blueprint:
    fields = fields.with_defaults({"rope_theta": 1e6})
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    windows = (window,) * llama_like.read_n_layers(fields)
    config = llama_like.read_config(fields, windows, norm_eps=1e-5)
    name = "num_experts" if "num_experts" in fields else "num_local_experts"
    n_experts = read_n_experts(fields, name, config.n_layers)
    moe = MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("num_experts_per_tok", 1, n_experts),
        intermediate_size=config.intermediate_size,
        normalised=True,
        in_layer=(True,) * config.n_layers,
    )
    config = replace(config, moe=moe)
    rules = llama_like.rules(config, qkv_bias=False, o_bias=False, mlp_bias=False)
    tied = fields.boolean("tie_word_embeddings", False)
    return Blueprint(config, (*rules, *_expert_rules(config, moe)), tied)


def _expert_rules(config: ModelConfig, moe: MoeConfig) -> list[TensorRule]:
    """Return the experts' rules of published files, or of modules, which name the MLP otherwise."""
    rules = []
    for layer in range(config.n_layers):
        published = f"model.layers.{layer}.block_sparse_moe."
        live = f"model.layers.{layer}.mlp."
        router = router_rule(moe, config.hidden_size, layer, f"{published}gate.weight")
        rules.append(replace(router, otherwise=replace(router, source=f"{live}gate.weight")))
        parts = stacked_parts(moe, config.hidden_size, f"{live}experts.")
        rules.extend(matrix_rules(parts, layer, f"{published}experts.", W123))
    return rules


def _read_multimodal(fields: Fields) -> Blueprint:
    """Return the blueprint of a mistral3 config.json. Raises ModelFormatError."""
    text = fields.child("text_config")
    kind = text.text("model_type")
    if kind not in _TEXT_MODELS:
        raise text.error("model_type", "one of " + ", ".join(map(repr, _TEXT_MODELS)))
    blueprint = _read(text) if kind == "mistral" else _read_ministral_3(text)
    tied = fields.boolean("tie_word_embeddings", True)
    return with_pixtral(replace(blueprint, tied=tied, text_prefixes=TEXT_PREFIXES), fields)


def _with_query_beta(config: ModelConfig, beta: float, original: int) -> ModelConfig:
    """Return the configuration with queries scaled by position.

    beta: the strength of the scaling; 0 = not scaled. original: the positions of the original
        training.
    """
    if beta == 0:
        return config
    (rope,) = config.ropes
    scaled = replace(rope, query_beta=float(np.float32(beta)), original_positions=original)
    return replace(config, ropes=(scaled,))


def _read_ministral_3(fields: Fields) -> Blueprint:
    n_layers = llama_like.read_n_layers(fields)
    windows = (fields.integer("sliding_window", 1, MAX_POSITIONS, 0),) * n_layers
    sizes = read_sizes(fields, llama_like.NAMES, _HEAD_DIM_OF_MINISTRAL_3)
    if "rope_parameters" not in fields:
        raise fields.error("rope_parameters", "an object")
    scaling = fields.child("rope_parameters")
    rope = read_rope(fields, sizes.head_dim, sizes.max_position_embeddings)
    config = llama_like.read_config(
        fields, windows, _HEAD_DIM_OF_MINISTRAL_3, rope=rope, norm_eps=1e-5
    )
    beta = scaling.number(_QUERY_BETA, 0.0, 1e3, 0.0)
    original = read_original_positions(fields, scaling, sizes.max_position_embeddings)
    config = _with_query_beta(config, beta, original)
    rules = llama_like.rules(config, qkv_bias=False, o_bias=False, mlp_bias=False)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _read_gguf(contents: GgufContents) -> Blueprint:
    keys = contents.keys
    config = read_gguf_config(contents, reads=(YARN_LOG_MULTIPLIER,))
    beta = keys.number("attention.temperature_scale", 0.0, 1e3, 0.0)
    original = original_positions(keys, config.max_position_embeddings)
    config = _with_query_beta(config, beta, original)
    rules = renamed(llama_like.rules(config, **biases(contents)))
    return gguf_blueprint(contents, config, from_pairs(rules, config.head_dim))


FAMILY = Family(
    hf={
        "mistral": _read,
        "mixtral": _read_mixtral,
        "ministral": _read,
        "ministral3": _read_ministral_3,
        "mistral3": _read_multimodal,
    },
    classes={
        "mistral": ModelClasses(model="MistralForCausalLM", base="MistralModel"),
        "mixtral": "MixtralForCausalLM",
        "ministral": "MinistralForCausalLM",
        "ministral3": "Ministral3ForCausalLM",
        "mistral3": "Mistral3ForConditionalGeneration",
    },
    gguf={"mistral3": _read_gguf},
)

"""Ministral (windows by layer) and Ministral 3 (YaRN, queries scaled by position).

Mistral 3 (`mistral3`) is a vision model around a text model of the kinds mistral and
ministral3, of which the text model is loaded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..checkpoints.blueprint import TEXT_PREFIXES, Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_POSITIONS
from ..checkpoints.llama_config import read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.rope import read_original_positions, read_rope
from ..parts import llama_like
from ..parts.family import Family
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
from .mistral import FAMILY as MISTRAL

_QUERY_BETA = "llama_4_scaling_beta"

_HEAD_DIM_OF_MINISTRAL_3 = 128
_TEXT_MODELS = ("mistral", "ministral3")
_DEFAULTS = {"ministral": {"sliding_window": 4096}, "ministral3": {}}


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a ministral or ministral3 config.json. Raises ModelFormatError."""
    fields = fields.with_defaults(_DEFAULTS[fields.text("model_type")])
    n_layers = llama_like.read_n_layers(fields)
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    windows = (window,) * n_layers
    if fields.text("model_type") == "ministral":
        if fields.get("layer_types") is not None:
            windows = llama_like.read_layer_windows(fields, window, n_layers)
        config = llama_like.read_config(fields, windows)
    else:
        config = _read_ministral_3(fields, windows)
    rules = llama_like.rules(config, qkv_bias=False, o_bias=False, mlp_bias=False)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _read_multimodal(fields: Fields) -> Blueprint:
    """Return the blueprint of the text model of a mistral3 config.json. Raises ModelFormatError."""
    text = fields.child("text_config")
    kind = text.text("model_type")
    if kind not in _TEXT_MODELS:
        raise text.error("model_type", "one of " + ", ".join(map(repr, _TEXT_MODELS)))
    blueprint = MISTRAL.hf["mistral"](text) if kind == "mistral" else _read(text)
    tied = fields.boolean("tie_word_embeddings", True)
    return replace(blueprint, tied=tied, text_prefixes=TEXT_PREFIXES)


def _with_query_beta(config: ModelConfig, beta: float, original: int) -> ModelConfig:
    """Return the configuration with queries scaled by position.

    beta: 0 = not scaled. original: positions that the model was trained with first.
    """
    if beta == 0:
        return config
    (rope,) = config.ropes
    scaled = replace(rope, query_beta=float(np.float32(beta)), original_positions=original)
    return replace(config, ropes=(scaled,))


def _read_ministral_3(fields: Fields, windows: tuple[int, ...]) -> ModelConfig:
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
    return _with_query_beta(config, beta, original)


def _read_gguf(contents: GgufContents) -> Blueprint:
    keys = contents.keys
    config = read_gguf_config(contents, reads=(YARN_LOG_MULTIPLIER,))
    beta = keys.number("attention.temperature_scale", 0.0, 1e3, 0.0)
    original = original_positions(keys, config.max_position_embeddings)
    config = _with_query_beta(config, beta, original)
    rules = renamed(llama_like.rules(config, **biases(contents)))
    return gguf_blueprint(contents, config, from_pairs(rules, config.head_dim))


FAMILY = Family(
    hf={"ministral": _read, "ministral3": _read, "mistral3": _read_multimodal},
    classes={
        "ministral": "MinistralForCausalLM",
        "ministral3": "Ministral3ForCausalLM",
        "mistral3": "Mistral3ForConditionalGeneration",
    },
    gguf={"mistral3": _read_gguf},
)

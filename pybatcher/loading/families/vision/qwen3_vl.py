"""Qwen3-VL, dense and mixtures of experts: the text model of Qwen3 with a vision tower.

Features of some layers of the tower are added after the first layers of the text model (deepstack).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...checkpoints.blueprint import TEXT_PREFIXES, Blueprint
from ...checkpoints.fields import Fields
from ...parts import llama_like
from ...parts.family import Family
from ...parts.qwen_vision import with_qwen_vision

_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 128000,
    "rope_theta": 500000.0,
}
_SECTION = (24, 20, 20)
_DEEPSTACK = (8, 16, 24)


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a qwen3_vl config.json. Raises ModelFormatError."""
    text = fields.child("text_config").with_defaults(
        {
            **_DEFAULTS,
            "model_type": "qwen3_vl_text",
            "tie_word_embeddings": fields.get("tie_word_embeddings"),
        }
    )
    text.refuse_unless("model_type", "qwen3_vl_text")
    n_layers = llama_like.read_n_layers(text)
    config = llama_like.read_config(text, (0,) * n_layers)
    config = replace(config, architecture="qwen3_vl")
    bias = text.boolean("attention_bias", False)
    rules = llama_like.rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=False, qk_norm=True)
    tied = text.boolean("tie_word_embeddings", False)
    blueprint = Blueprint(config, tuple(rules), tied, text_prefixes=TEXT_PREFIXES)
    return with_qwen_vision(blueprint, fields, _SECTION, _DEEPSTACK)


FAMILY = Family(
    hf={"qwen3_vl": _read},
    classes={"qwen3_vl": "Qwen3VLForConditionalGeneration"},
)

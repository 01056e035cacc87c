"""A field that config.json leaves out is read as transformers has it, or refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest
import transformers
from family_configs import read_family
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import _POSITIONS, read_blueprint

CLASSES = (
    *("Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe", "Qwen3_5Text", "Qwen3_5MoeText"),
    *("Mixtral", "GPT2", "GptOss", "Gemma2", "Gemma3Text", "Gemma4Text", "Granite", "Olmo2"),
    *("Olmo3", "SmolLM3", "Phi3", "Ministral", "Ministral3", "Bert", "Roberta", "XLMRoberta"),
    *("ModernBert", "Apertus"),
)
LAYERS = ("num_hidden_layers", "n_layer")  # with which lists of layers have to agree
# By default as many as heads in most families: where that is wrong, matrices have other shapes.
OF_SHAPES = ("num_key_value_heads",)
FEW: dict[str, Any] = {"num_hidden_layers": 4, "num_experts_per_tok": 2}
OTHERS: dict[str, dict[str, Any]] = {  # than the defaults, so that more fields are read, and fast
    "Qwen2": {"use_sliding_window": True, "max_window_layers": 1},
    "Qwen3": {"use_sliding_window": True, "max_window_layers": 1},
    "Qwen3Moe": {"use_sliding_window": True, "num_local_experts": 4},
    "Qwen3_5MoeText": {"num_experts": 4},
    "Mixtral": {"num_local_experts": 4},
    "GptOss": {"num_local_experts": 4},
    "SmolLM3": {"use_sliding_window": True, "sliding_window": 64},
}


def whole(config: Any) -> dict[str, Any]:
    """All fields of a configuration, as a file has them."""
    fields: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    for name in ("architectures", "id2label", "label2id"):
        fields.pop(name, None)
    return {**fields, "model_type": config.model_type}


@pytest.mark.parametrize("name", CLASSES)
def test_absent_fields(name: str) -> None:
    config_class = getattr(transformers, f"{name}Config")
    fields = whole(config_class(**FEW, **OTHERS.get(name, {})))
    read_blueprint(Fields(fields, "config.json"))
    differ = []
    for absent in sorted(fields.keys() - {"model_type", *LAYERS, *OF_SHAPES}):
        left = {field: value for field, value in fields.items() if field != absent}
        try:
            found = read_blueprint(Fields(left, "config.json"))
        except ModelFormatError as error:
            if absent not in str(error):
                differ.append(f"{absent}: {error}")
            continue
        if found != read_blueprint(Fields(whole(config_class(**left)), "config.json")):
            differ.append(absent)
    assert differ == []


def test_the_default_number_of_positions() -> None:
    """A file that no release of transformers wrote may lack the field, as old files of Llama do."""
    for model_type, n_positions in _POSITIONS.items():
        assert CONFIG_MAPPING[model_type]().max_position_embeddings == n_positions, model_type
    assert read_family("llama", max_position_embeddings=...).config.max_position_embeddings == 2048

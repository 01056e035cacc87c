"""Qwen2.5-VL: a tower with windows; published files have the text's fields beside it."""

from __future__ import annotations

from typing import Any

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.blueprint import Blueprint
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint

TEXT: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
}
VISION: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_heads": 4,
    "in_chans": 3,
    "patch_size": 4,
    "fullatt_block_indexes": [1],
}


def read(vision: dict[str, Any] | None = None, **text: Any) -> Blueprint:
    fields = {
        "model_type": "qwen2_5_vl",
        **TEXT,
        **text,
        "vision_config": {**VISION, **(vision or {})},
    }
    return read_blueprint(Fields(fields, "config.json"))


def test_published_files_are_read_as_those_of_transformers() -> None:
    blueprint = read()
    assert blueprint.config.ropes[0].axes == (0, 0, 1, 1, 1, 2, 2, 2)
    nested = {"model_type": "qwen2_5_vl", "text_config": TEXT, "vision_config": VISION}
    assert read_blueprint(Fields(nested, "config.json")) == blueprint


def test_the_tower() -> None:
    vision = read().vision
    assert vision is not None
    assert vision.windowed_layers == (True, False, True)
    assert vision.layers.norm == "rms"
    assert vision.layers.gated_mlp
    assert vision.n_positions == 0
    assert vision.projector.norm_before == "rms"


@pytest.mark.parametrize(
    ("vision", "text", "said"),
    [
        ({"fullatt_block_indexes": 1}, {}, "fullatt_block_indexes is 1; expected a list"),
        ({"out_hidden_size": 31}, {}, "out_hidden_size is 31; expected 32"),
        ({}, {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 2]}}, "whose sum is 8"),
        ({}, {"rope_scaling": {"type": "ntk"}}, "type is 'ntk'"),
        ({}, {"num_attention_heads": 3}, "num_attention_heads is 3"),
    ],
    ids=str,
)
def test_what_is_refused(vision: dict[str, Any], text: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read(vision, **text)

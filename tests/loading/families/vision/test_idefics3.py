"""Idefics 3 and SmolVLM: a Llama and a SigLIP."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading import from_torch, open_model
from pybatcher.loading.checkpoints.blueprint import Blueprint
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint
from tests.support.vision_models import CASES

TEXT: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
VISION: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "patch_size": 4,
    "image_size": 26,
}


def read(vision: dict[str, Any] | None = None, **changes: Any) -> Blueprint:
    fields = {
        "model_type": "smolvlm",
        "text_config": TEXT,
        "vision_config": {**VISION, **(vision or {})},
        **changes,
    }
    return read_blueprint(Fields(fields, "config.json"))


def test_the_tower() -> None:
    blueprint = read()
    vision = blueprint.vision
    assert vision is not None
    assert blueprint.config.takes_images
    assert vision.n_positions == 36
    assert vision.final_norm
    assert vision.layers.ropes == ()
    assert vision.layers.layer_ropes == (-1, -1, -1)
    assert vision.layers.activation == "gelu_tanh"
    assert vision.projector.group == 4
    assert read(scale_factor=3).vision.projector.group == 9  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("vision", "changes", "said"),
    [
        ({"image_size": 3}, {}, "image_size is 3"),
        ({"num_attention_heads": 5}, {}, "num_attention_heads is 5; expected a divisor"),
        ({"layer_norm_eps": -1.0}, {}, r"layer_norm_eps is -1\.0"),
        ({"hidden_act": "relu"}, {}, "hidden_act is 'relu'"),
        ({}, {"scale_factor": 0}, "scale_factor is 0"),
        ({}, {"text_config": {**TEXT, "model_type": "mistral"}}, "model_type is 'mistral'"),
    ],
    ids=str,
)
def test_what_is_refused(vision: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read(vision, **changes)


@pytest.mark.parametrize("kind", ["idefics3", "smolvlm", "qwen2_5_vl", "mistral3", "lfm2_vl"])
def test_files_have_the_tensors_of_the_module(kind: str, tmp_path: Path) -> None:
    module = CASES[kind].make()
    module.save_pretrained(tmp_path)
    expected = from_torch(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = open_model(tmp_path)
    assert loaded.vision == expected.vision
    assert loaded.config == expected.config
    assert loaded.tensors.keys() == expected.tensors.keys()
    assert all(
        (part.array == expected.tensors[name].array).all() for name, part in loaded.tensors.items()
    )

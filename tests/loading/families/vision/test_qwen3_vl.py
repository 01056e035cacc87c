"""Qwen3-VL: its text model with several positions a row, and its tower with deepstack."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading import from_torch, open_model
from pybatcher.loading.checkpoints.blueprint import Blueprint
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint
from tests.support.vision_models import CASES

TEXT: dict[str, Any] = {
    "model_type": "qwen3_vl_text",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True},
    "rope_theta": 10000.0,
}
VISION: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_heads": 4,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 2],
}


def read(vision: dict[str, Any] | None = None, **text: Any) -> Blueprint:
    fields = {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": {**TEXT, **text},
        "vision_config": {**VISION, **(vision or {})},
    }
    return read_blueprint(Fields(fields, "config.json"))


def test_the_text_model_rotates_by_three_positions() -> None:
    config = read().config
    assert config.ropes[0].axes == (0, 1, 2, 0, 1, 2, 0, 0)
    assert config.takes_images
    assert config.deepstack_layers == 2
    assert read(rope_scaling={"mrope_section": [2, 3, 3]}).config.ropes[0].axes == (
        *(0, 1, 2, 0, 1, 2, 0, 1),
    )
    default = read(head_dim=128, rope_scaling={"rope_type": "default"}).config.ropes[0]
    assert [default.axes.count(axis) for axis in range(3)] == [24, 20, 20]


def test_the_tower() -> None:
    vision = read().vision
    assert vision is not None
    assert vision.patch_size == 3 * 2 * 4 * 4
    assert vision.n_positions == 36
    assert vision.width == 96
    assert vision.layers.ropes[0].axes == (0, 0, 0, 1, 1, 1)
    assert not vision.layers.causal
    assert [found.layer for found in vision.deepstack] == [0, 2]
    assert {found.projector.norm_after for found in vision.deepstack} == {"layer"}
    assert vision.projector.norm_before == "layer"
    assert read({"deepstack_visual_indexes": []}).config.deepstack_layers == 0


@pytest.mark.parametrize(
    ("vision", "said"),
    [
        ({"deepstack_visual_indexes": [2, 0]}, "deepstack_visual_indexes is"),
        ({"deepstack_visual_indexes": [3]}, "an ascending list of layers from 0 to 2"),
        ({"deepstack_visual_indexes": "all"}, "deepstack_visual_indexes is 'all'"),
        ({"num_heads": 5}, "num_heads is 5; expected a divisor of hidden_size, 48"),
        ({"num_heads": 8}, "num_heads is 8; expected a number with heads of a multiple of 4"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"out_hidden_size": 31}, "out_hidden_size is 31; expected 32"),
        ({"spatial_merge_size": 0}, "spatial_merge_size is 0"),
        ({"patch_size": [4, 4]}, "patch_size is"),
        ({"num_position_embeddings": 0}, "num_position_embeddings is 0"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
    ],
    ids=str,
)
def test_towers_that_are_refused(vision: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read(vision)


@pytest.mark.parametrize("section", [[4, 2], [4, 2, 20], "4", [4, 2, True], [4, 2, -1]], ids=str)
def test_sections_that_are_refused(section: Any) -> None:
    with pytest.raises(ModelFormatError, match=r"mrope_section is .*; expected a list of 3 whole"):
        read(rope_scaling={"mrope_section": section})


def test_more_deepstack_than_layers_of_the_text_model() -> None:
    with pytest.raises(ModelFormatError, match="a list of up to 1, the layers of the text"):
        read(num_hidden_layers=1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen3_vl")
    CASES["qwen3_vl"].make().save_pretrained(path)
    return path


def test_files_have_the_tensors_of_the_module(saved: Path) -> None:
    expected = from_torch(CASES["qwen3_vl"].make())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = open_model(saved)
    assert loaded.vision == expected.vision
    assert loaded.tensors.keys() == expected.tensors.keys()
    for name, tensor in loaded.tensors.items():
        assert np.array_equal(tensor.array, expected.tensors[name].array), name


def test_the_tower_is_left_out_on_demand(saved: Path) -> None:
    """Without images the three positions of a row are equal: the rope has no axes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = open_model(saved, vision=False)
    assert loaded.vision is None
    assert not loaded.config.takes_images
    assert loaded.config.deepstack_layers == 0
    assert loaded.config.ropes[0].axes == ()
    assert not any(name.startswith("tower.") for name in loaded.tensors)


def test_a_missing_tensor_of_the_tower_is_named() -> None:
    blueprint = read()
    with pytest.raises(ModelFormatError, match=r"tensor visual\.patch_embed\.proj\.weight is"):
        blueprint.fill({}, "here")
    assert blueprint.fitted_to({}).vision is None

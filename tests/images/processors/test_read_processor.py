from __future__ import annotations

from typing import Any

import pytest
from processors import processor_of

from pybatcher.errors import ModelFormatError
from pybatcher.images import read_processor
from pybatcher.images.processors.gemma3 import Gemma3Processor
from pybatcher.loading.checkpoints.fields import Fields

GEMMA3 = {"image_size": 112, "patch_size": 14}
FAMILIES = ["gemma3", "gemma4", "idefics3", "lfm2_vl", "mistral3", "qwen2_5_vl", "qwen3_5"]


def read(model_type: str, config: dict[str, Any]) -> Any:
    fields = Fields(config, "config.json")
    return read_processor(model_type, fields, lambda name: Fields({}, name))


def test_a_model_without_a_tower_has_no_processor() -> None:
    assert read("llama", {"vision_config": {}}) is None
    assert read("qwen3_5", {}) is None
    assert read("gemma3", {"vision_config": None}) is None


@pytest.mark.parametrize("model_type", FAMILIES)
def test_without_files_of_a_processor_the_model_decides(model_type: str) -> None:
    vision = {"patch_size": 8, "image_size": 128}
    assert processor_of(model_type, vision).image_token


def test_settings_in_processor_config_come_before_preprocessor_config() -> None:
    nested = {"image_processor": {"size": {"height": 112, "width": 112}, "image_mean": [0, 0, 0]}}
    other = {"size": {"height": 112, "width": 112}, "image_mean": [0.5, 0.5, 0.5]}
    config = {"mm_tokens_per_image": 4}
    found = processor_of("gemma3", GEMMA3, other, config=config, processor=nested)
    assert isinstance(found, Gemma3Processor)
    assert found.levels[0, 0] == 0
    plain = {"image_seq_length": 4}
    found = processor_of("gemma3", GEMMA3, other, config=config, processor=plain)
    assert isinstance(found, Gemma3Processor)
    assert found.levels[0, 0] == -1


@pytest.mark.parametrize("model_type", FAMILIES)
def test_steps_that_no_processor_takes_are_refused(model_type: str) -> None:
    vision = {"patch_size": 8, "image_size": 128}
    with pytest.raises(ModelFormatError, match="do_resize is False; expected true"):
        processor_of(model_type, vision, {"do_resize": False})
    with pytest.raises(ModelFormatError, match="do_center_crop is True; expected false"):
        processor_of(model_type, vision, {"do_center_crop": True})


@pytest.mark.parametrize("model_type", ["idefics3", "mistral3", "qwen3_5"])
def test_fixed_sizes_are_refused_where_sizes_follow_the_image(model_type: str) -> None:
    vision = {"patch_size": 8, "image_size": 128}
    with pytest.raises(ModelFormatError, match=r"size is .*; expected longest_edge"):
        processor_of(model_type, vision, {"size": {"height": 9, "width": 9}})

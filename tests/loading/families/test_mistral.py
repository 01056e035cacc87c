from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.blueprint import Blueprint
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
BASE = {
    "model_type": "ministral3",
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rope_parameters": YARN,
}


def read(**changes: Any) -> Blueprint:
    fields = {name: value for name, value in {**BASE, **changes}.items() if value is not ...}
    return read_blueprint(Fields(fields, "config.json"))


def read_ministral(**changes: Any) -> Blueprint:
    return read(model_type="ministral", rope_parameters=..., **changes)


def read_multimodal(**text: Any) -> Blueprint:
    fields = {"model_type": "mistral3", "text_config": {**BASE, **text}}
    return read_blueprint(Fields(fields, "config.json"))


def test_ministral_has_windows_by_layer() -> None:
    assert read_ministral().config.sliding_windows == (4096,) * 4
    assert read_ministral(sliding_window=None).config.sliding_windows == (0,) * 4
    assert read_ministral(sliding_window=9).config.sliding_windows == (9,) * 4
    kinds = ["full_attention", "sliding_attention"] * 2
    windows = read_ministral(sliding_window=9, layer_types=kinds).config.sliding_windows
    assert windows == (0, 9, 0, 9)
    assert read_ministral().config.head_dim == 8
    # transformers reads a mistral with layer types as a ministral
    mistral = read(model_type="mistral", rope_parameters=..., sliding_window=9, layer_types=kinds)
    assert mistral.config.sliding_windows == (0, 9, 0, 9)


def test_ministral_3_scales_its_queries() -> None:
    blueprint = read()
    (rope,) = blueprint.config.ropes
    assert (rope.query_beta, rope.original_positions) == (np.float32(0.1), 32)
    assert (rope.attention_factor, rope.long_inv_freq) == (1.0, ())
    assert (blueprint.config.head_dim, blueprint.config.norm_eps) == (128, 1e-5)
    assert not blueprint.tied
    assert read(sliding_window=5).config.sliding_windows == (5,) * 4
    plain = {name: value for name, value in YARN.items() if name != "llama_4_scaling_beta"}
    (rope,) = read(rope_parameters=plain).config.ropes
    assert (rope.query_beta, rope.original_positions) == (0.0, 0)


def test_mistral_3_is_its_text_model() -> None:
    blueprint = read_multimodal()
    assert blueprint.config == read().config
    assert blueprint.tied
    assert blueprint.text_prefixes
    text = {"model_type": "mistral", "rope_parameters": None, "sliding_window": 7}
    assert read_multimodal(**text).config.sliding_windows == (7,) * 4


PIXTRAL: dict[str, Any] = {
    "model_type": "pixtral",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 4,
    "rope_theta": 100.0,
}


def read_with_tower(vision: dict[str, Any] | None = None, **changes: Any) -> Blueprint:
    fields = {
        "model_type": "mistral3",
        "text_config": BASE,
        "vision_config": {**PIXTRAL, **(vision or {})},
        **changes,
    }
    return read_blueprint(Fields(fields, "config.json"))


def test_mistral_3_has_a_pixtral() -> None:
    """The even frequencies of a head are of the row of a patch, the odd ones of its column."""
    blueprint = read_with_tower()
    vision = blueprint.vision
    assert vision is not None
    (rope,) = vision.layers.ropes
    assert rope.inv_freq == pytest.approx([100.0**-e for e in (0, 1 / 2, 1 / 4, 3 / 4)])
    assert rope.axes == (0, 0, 1, 1)
    assert vision.pre_norm
    assert vision.patch_size == 3 * 4 * 4
    assert vision.projector.group == 4
    assert [linear.activation for linear in vision.projector.linears] == ["none", "gelu", "none"]
    assert blueprint.without_vision().config == read().config
    rules = {rule.name: rule for rule in blueprint.vision_rules}
    assert rules["tower.projector.linears.0.weight"].column_groups == 4
    assert "tower.projector.linears.1.bias" not in rules
    biased = read_with_tower(multimodal_projector_bias=True).vision_rules
    assert "tower.projector.linears.1.bias" in {rule.name for rule in biased}


@pytest.mark.parametrize(
    ("vision", "changes", "said"),
    [
        ({"model_type": "clip_vision_model"}, {}, "model_type is 'clip_vision_model'"),
        ({"head_dim": 4}, {}, "head_dim is 4; expected 8"),
        ({"num_attention_heads": 8}, {}, "a number with heads of a multiple of 4"),
        ({"num_channels": 0}, {}, "num_channels is 0"),
        ({}, {"vision_feature_layer": -2}, "vision_feature_layer is -2; expected -1"),
        ({}, {"vision_feature_layer": True}, "vision_feature_layer is True"),
        ({}, {"spatial_merge_size": 33}, "spatial_merge_size is 33"),
        ({}, {"projector_hidden_act": "relu"}, "projector_hidden_act is 'relu'"),
    ],
    ids=str,
)
def test_towers_that_are_refused(vision: dict[str, Any], changes: Any, said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read_with_tower(vision, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rope_parameters": ...}, "rope_parameters is missing"),
        ({"rope_parameters": {**YARN, "llama_4_scaling_beta": -1}}, "llama_4_scaling_beta is -1"),
        ({"rope_parameters": {**YARN, "llama_4_scaling_beta": "a"}}, "llama_4_scaling_beta is 'a'"),
        ({"architectures": ["MistralForCausalLM"]}, r"expected \['Ministral3ForCausalLM'\]"),
        ({"model_type": "ministral", "layer_types": ["full_attention"]}, "a list of 4 layer types"),
        ({"model_type": "mistral3", "text_config": {}}, "text_config: model_type is missing"),
        ({"model_type": "mistral3", "text_config": []}, "text_config is "),
        (
            {"model_type": "mistral3", "text_config": {**BASE, "model_type": "mistral4"}},
            "model_type is 'mistral4'; expected one of 'mistral', 'ministral3'",
        ),
    ],
)
def test_what_is_not_supported_or_absurd_is_refused_by_name(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFormatError, match=f"^config.json: .*{said}"):
        read(**changes)

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading import ModelConfig
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint

BASE = {
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


def read(model_type: str = "granite", **changes: Any) -> ModelConfig:
    return read_blueprint(
        Fields({**BASE, "model_type": model_type, **changes}, "config.json")
    ).config


def test_multipliers() -> None:
    config = read(
        embedding_multiplier=12.0,
        residual_multiplier=0.25,
        attention_multiplier=0.5,
        logits_scaling=8,
    )
    llama = replace(read("llama"), architecture="granite")
    assert config == replace(
        llama,
        norm_eps=1e-5 * 16,  # of a residual stream that is four times larger
        embedding_scale=48.0,
        attention_scale=0.5,
        logit_scale=1 / 8,
    )


def test_what_it_leaves_out() -> None:
    assert read() == replace(read("llama"), architecture="granite", attention_scale=1.0)


@pytest.mark.parametrize(
    "name",
    ["embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"],
)
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_multipliers_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(ModelFormatError, match=f"config.json: {name} is {value!r}"):
        read(**{name: value})


def test_another_activation() -> None:
    with pytest.raises(ModelFormatError, match="hidden_act is 'gelu'"):
        read(hidden_act="gelu")


HYBRID = {
    "num_local_experts": 0,
    "layer_types": ["attention", "full_attention"],
    "position_embedding_type": "rope",
    "shared_intermediate_size": 88,
}


def test_a_dense_hybrid_has_a_shared_mlp() -> None:
    config = read("granitemoehybrid", **HYBRID, residual_multiplier=0.25)
    granite = read(intermediate_size=88, residual_multiplier=0.25)
    assert config == replace(granite, architecture="granitemoehybrid")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_local_experts": 62}, "num_local_experts is 62; expected 0"),
        ({"num_local_experts": None}, "num_local_experts is None; expected 0"),
        ({"layer_types": ["mamba", "attention"]}, "Mamba layers are not supported"),
        ({"layer_types": [[], {}]}, "Mamba layers are not supported"),
        ({"layer_types": None}, "layer_types is None; expected a list of 'attention'"),
        ({"layer_types": ["attention"]}, "a list of 2 layer types"),
        ({"position_embedding_type": None}, "position_embedding_type is None; expected 'rope'"),
        ({"shared_intermediate_size": "8"}, "shared_intermediate_size is '8'"),
    ],
)
def test_a_hybrid_with_experts_or_mamba_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=f"config.json: .*{said}"):
        read("granitemoehybrid", **{**HYBRID, **changes})

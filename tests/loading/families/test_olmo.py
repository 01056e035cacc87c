from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading import ModelConfig, from_torch
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint
from pybatcher.testing.checkpoints import make_module

BASE = {
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def read(model_type: str, **changes: Any) -> ModelConfig:
    return read_blueprint(
        Fields({**BASE, "model_type": model_type, **changes}, "config.json")
    ).config


def test_olmo_2() -> None:
    assert read("olmo2") == replace(
        read("llama"),
        architecture="olmo2",
        norm_eps=1e-5,
        pre_norm=False,
        post_norm=True,
        whole_qk_norm=True,
    )


def test_olmo_3() -> None:
    config = read("olmo3", sliding_window=9)
    assert config.sliding_windows == (9, 9, 9, 0, 9)
    assert config.layer_ropes == (1, 1, 1, 0, 1)
    assert config.ropes[0] == config.ropes[1]
    np.testing.assert_allclose(config.ropes[0].inv_freq[1], 5e5**-0.25, rtol=1e-6)
    kinds = ["full_attention", *["sliding_attention"] * 4]
    config = read("olmo3", layer_types=kinds)
    assert config.sliding_windows == (0, 4096, 4096, 4096, 4096)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 100.0, "rope_scaling": YARN},
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 100.0, **YARN},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
    ],
)
def test_frequencies_are_scaled_where_all_is_seen(changes: dict[str, Any]) -> None:
    full, sliding = read("olmo3", **changes).ropes
    assert full == read("olmo2", rope_theta=100.0, rope_scaling=YARN).ropes[0]
    assert sliding == read("olmo2", rope_theta=100.0).ropes[0]


@pytest.mark.parametrize("architecture", ["olmo2", "olmo3"])
def test_norms(architecture: str) -> None:
    live = from_torch(make_module(architecture))
    layer = {name.removeprefix("layers.1.") for name in live.tensors if "layers.1." in name}
    parts = ("q", "k", "v", "o", "gate", "up", "down")
    norms = ("attn_post_norm", "mlp_post_norm", "q_norm", "k_norm")
    assert layer == {f"{name}.weight" for name in (*parts, *norms)}
    assert live.tensors["layers.1.q_norm.weight"].shape == (48,)
    assert live.tensors["layers.1.k_norm.weight"].shape == (16,)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"layer_types": ["full_attention"]}, "a list of 5 layer types"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
    ],
)
def test_what_is_absurd_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=f"^config.json: .*{said}"):
        read("olmo3", **changes)

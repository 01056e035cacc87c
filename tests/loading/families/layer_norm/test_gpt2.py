from __future__ import annotations

from typing import Any

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading import ModelConfig
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint

BASE = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 100,
    "n_embd": 60,
    "n_layer": 2,
    "n_head": 5,
    "n_positions": 64,
}


def read(**changes: Any) -> ModelConfig:
    return read_blueprint(Fields({**BASE, **changes}, "config.json")).config


def test_what_config_json_says() -> None:
    assert read() == ModelConfig(
        architecture="gpt2",
        vocab_size=100,
        hidden_size=60,
        n_layers=2,
        n_heads=5,
        n_kv_heads=5,
        head_dim=12,
        intermediate_size=240,
        max_position_embeddings=64,
        norm="layer",
        norm_eps=1e-5,
        activation="gelu_tanh",
        gated_mlp=False,
        position="learned",
        ropes=(),
        layer_ropes=(-1, -1),
        attention_scale=12**-0.5,
        sliding_windows=(0, 0),
    )


def test_what_it_may_change() -> None:
    config = read(n_inner=77, activation_function="gelu", scale_attn_weights=False)
    assert (config.intermediate_size, config.activation) == (77, "gelu")
    assert config.attention_scale == 1.0
    assert read(activation_function="gelu_pytorch_tanh").activation == "gelu_tanh"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["GPT2Model"]}, r"architectures is .*expected \['GPT2LMHeadModel'\]"),
        ({"architectures": [["GPT2LMHeadModel"]]}, r"architectures is \[\["),
        ({"architectures": [{}]}, r"architectures is \[\{"),
        ({"n_head": 7}, "n_head is 7; expected a divisor of n_embd, 60"),
        ({"n_head": None}, "n_head is None"),
        ({"n_positions": 0}, "n_positions is 0"),
        ({"activation_function": "relu"}, "activation_function is 'relu'; expected one of 'gelu"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"layer_norm_epsilon": float("inf")}, "layer_norm_epsilon is inf"),
        ({"quantization_config": {}}, "quantization_config is {}"),
    ],
)
def test_what_is_not_supported_or_absurd_is_refused_by_name(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFormatError, match=f"config.json: {said}"):
        read(**changes)

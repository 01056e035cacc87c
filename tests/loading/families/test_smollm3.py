from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.blueprint import Blueprint
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint

BASE = {
    "model_type": "smollm3",
    "architectures": ["SmolLM3ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def read(**changes: Any) -> Blueprint:
    return read_blueprint(Fields({**BASE, **changes}, "config.json"))


def test_which_layers_rotate() -> None:
    assert read().config.layer_ropes == (0, 0, 0, -1, 0, 0)
    assert read(no_rope_layer_interval=2).config.layer_ropes == (0, -1) * 3
    assert read(no_rope_layer_interval=1).config.layer_ropes == (-1,) * 6
    listed = [0, 1, 1, 0, 1, 1, 0, 0]  # 1 is a layer that rotates; more than there are layers
    assert read(no_rope_layers=listed).config.layer_ropes == (-1, 0, 0, -1, 0, 0)


def test_windows() -> None:
    windowed = {"sliding_window": 16, "use_sliding_window": True}
    assert read(sliding_window=16).config.sliding_windows == (0,) * 6
    assert read(**windowed).config.sliding_windows == (0, 0, 0, 16, 0, 0)
    kinds = ["sliding_attention"] + ["full_attention"] * 5
    assert read(**windowed, layer_types=kinds).config.sliding_windows == (16, 0, 0, 0, 0, 0)
    off = {**windowed, "use_sliding_window": False, "layer_types": kinds}
    assert read(**off).config.sliding_windows == (16, 0, 0, 0, 0, 0), "as transformers masks"


def test_what_it_leaves_out() -> None:
    blueprint = read()
    assert blueprint.tied
    second = np.float32(2e6) ** np.float32(-2 / 8)
    assert blueprint.config.ropes[0].inv_freq[1] == pytest.approx(second)
    assert not any(rule.name.endswith(".bias") for rule in blueprint.rules)


def test_biases() -> None:
    def biased(**changes: Any) -> set[str]:
        rules = read(**changes).rules
        return {rule.name.split(".")[2] for rule in rules if rule.name.endswith(".bias")}

    assert biased(attention_bias=True) == {"q", "k", "v", "o"}
    assert biased(mlp_bias=True) == {"gate", "up", "down"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"no_rope_layers": [1] * 5}, "no_rope_layers is .*expected a list of 6 numbers"),
        ({"no_rope_layers": [1, 0, 1, 0, 1, 2]}, "no_rope_layers is .*each 0 or 1"),
        ({"no_rope_layers": "none"}, "no_rope_layers is 'none'"),
        ({"no_rope_layers": [1, 0, 1, 0, 1, "0"]}, "no_rope_layers is"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval is 0"),
        ({"layer_types": ["full_attention"]}, "a list of 6 layer types"),
        ({"architectures": ["LlamaForCausalLM"]}, r"expected \['SmolLM3ForCausalLM'\]"),
        ({"num_hidden_layers": "6"}, "num_hidden_layers is '6'"),
    ],
)
def test_what_is_not_supported_or_absurd_is_refused_by_name(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFormatError, match=f"^config.json: .*{said}"):
        read(**changes)

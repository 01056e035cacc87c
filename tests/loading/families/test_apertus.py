from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from family_configs import read_family, rule_of

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.rope import read_rope
from pybatcher.loading.families import read_gguf_blueprint
from pybatcher.loading.parts.gguf_contents import GgufContents

KEYS: dict[str, Any] = {
    "general.architecture": "apertus",
    "apertus.block_count": 3,
    "apertus.context_length": 512,
    "apertus.embedding_length": 48,
    "apertus.feed_forward_length": 88,
    "apertus.attention.head_count": 6,
    "apertus.attention.head_count_kv": 2,
    "apertus.attention.layer_norm_rms_epsilon": 1e-5,
    "xielu.alpha_p": np.array([0.1, 0.2, 0.3], np.float32),
    "xielu.alpha_n": np.array([-0.1, -0.2, -0.3], np.float32),
    "xielu.beta": 0.5,
    "xielu.eps": np.full(3, -1e-6, np.float32),
}


def test_the_mlp_has_no_gate_and_four_numbers() -> None:
    blueprint = read_family("apertus")
    config = blueprint.config
    assert (config.activation, config.gated_mlp, config.norm_eps) == ("xielu", False, 1e-5)
    for name, shape in (("alpha_p", (1,)), ("alpha_n", (1,)), ("beta", ()), ("eps", ())):
        rule = rule_of(blueprint, f"layers.2.xielu.{name}")
        assert (rule.source, rule.shape) == (f"model.layers.2.mlp.act_fn.{name}", shape)
    norm = rule_of(blueprint, "layers.1.mlp_norm.weight")
    assert norm.source == "model.layers.1.feedforward_layernorm.weight"
    assert rule_of(blueprint, "layers.1.q_norm.weight").shape == (8,)
    assert "layers.0.gate.weight" not in {rule.name for rule in blueprint.rules}


def test_scaling_of_rope_that_config_json_leaves_out() -> None:
    scaled = read_family("apertus").config.ropes[0]
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    for changes in ({"rope_parameters": scaling}, {"rope_scaling": scaling, "rope_theta": 12e6}):
        assert read_family("apertus", **changes).config.ropes[0] == scaled
    plain = read_rope(Fields({"rope_theta": 12e6}, "config.json"), 8, 64)
    found = read_family("apertus", rope_parameters={"rope_type": "default"}).config.ropes[0]
    assert found == plain != scaled


def test_another_activation_is_refused_by_name() -> None:
    with pytest.raises(ModelFormatError, match="hidden_act is 'silu'"):
        read_family("apertus", hidden_act="silu")


def read_gguf(**changes: Any) -> dict[str, float | None]:
    """Return the numbers of the activation; `__` in a name is a dot, and `...` removes a key."""
    keys = {**KEYS, **{name.replace("__", "."): value for name, value in changes.items()}}
    keys = {name: value for name, value in keys.items() if value is not ...}
    contents = GgufContents(metadata=Fields(keys, "model.gguf"), vocab_size=384)
    rules = read_gguf_blueprint(contents).rules
    return {rule.name: rule.value for rule in rules if ".xielu." in rule.name}


def test_a_gguf_file_has_the_numbers_in_its_metadata() -> None:
    numbers = read_gguf()
    assert len(numbers) == 12
    assert numbers["layers.1.xielu.alpha_p"] == pytest.approx(0.2)
    assert numbers["layers.2.xielu.alpha_n"] == pytest.approx(-0.3)
    assert [numbers[f"layers.{layer}.xielu.beta"] for layer in range(3)] == [0.5] * 3
    assert numbers["layers.0.xielu.eps"] == np.float32(-1e-6)


@pytest.mark.parametrize(
    "value", [..., 1, "0.5", True, np.ones(2), np.array([1, 2, 3]), np.array([1, np.inf, 1]), 1e300]
)
def test_numbers_that_do_not_fit_are_refused_by_name(value: Any) -> None:
    with pytest.raises(ModelFormatError, match=r"xielu\.alpha_n"):
        read_gguf(xielu__alpha_n=value)

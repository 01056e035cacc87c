from __future__ import annotations

from typing import Any

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.blueprint import Blueprint
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint

BASE = {
    "model_type": "internlm3",
    "architectures": ["InternLM3ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_scaling": {"rope_type": "dynamic", "factor": 6.0},
}


def read(**changes: Any) -> Blueprint:
    return read_blueprint(Fields({**BASE, **changes}, "config.json"))


def biased(**changes: Any) -> str:
    """The parts of a layer that have a bias."""
    names = [rule.name.split(".") for rule in read(**changes).rules]
    return " ".join(
        name[2] for name in names if name[0] == "layers" and name[1] == "0" and name[3] == "bias"
    )


def test_biases_by_both_names() -> None:
    assert biased() == ""
    assert biased(qkv_bias=True) == biased(attention_bias=True) == "q k v"
    assert biased(bias=True) == biased(mlp_bias=True) == "o gate up down"
    assert biased(qkv_bias=False, attention_bias=True) == ""


def test_what_it_leaves_out() -> None:
    blueprint = read()
    assert (blueprint.config.head_dim, blueprint.config.norm_eps) == (128, 1e-5)
    assert not blueprint.tied
    plain = read(rope_scaling=None)  # no sequence is long enough to be scaled
    assert blueprint.config.ropes == plain.config.ropes


def test_both_classes_are_known() -> None:
    read(architectures=["LlamaForCausalLM"])
    with pytest.raises(ModelFormatError, match=r"expected \['InternLM3ForCausalLM'\]"):
        read(architectures=["InternLM2ForCausalLM"])

from __future__ import annotations

import pytest
from family_configs import read_family

from pybatcher.errors import ModelFormatError


def test_what_config_json_leaves_out() -> None:
    blueprint = read_family("arcee")
    config = blueprint.config
    assert (config.activation, config.gated_mlp) == ("relu_squared", False)
    assert (config.norm_eps, config.head_dim, blueprint.tied) == (1e-5, 8, False)
    names = {rule.name for rule in blueprint.rules}
    assert "layers.0.up.weight" in names
    assert not names & {"layers.0.gate.weight", "layers.0.up.bias", "layers.0.q.bias"}


def test_biases() -> None:
    names = {rule.name for rule in read_family("arcee", attention_bias=True, mlp_bias=True).rules}
    assert {"layers.0.up.bias", "layers.0.q.bias", "layers.0.o.bias"} <= names


def test_what_is_not_supported_is_refused_by_name() -> None:
    with pytest.raises(ModelFormatError, match="hidden_act is 'silu'"):
        read_family("arcee", hidden_act="silu")

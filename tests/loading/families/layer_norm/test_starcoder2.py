from __future__ import annotations

import pytest
from family_configs import read_family, rule_of

from pybatcher.errors import ModelFormatError


def test_what_config_json_leaves_out() -> None:
    blueprint = read_family("starcoder2", num_key_value_heads=...)
    config = blueprint.config
    assert (config.norm, config.norm_eps, config.n_kv_heads) == ("layer", 1e-5, 2)
    assert (config.activation, config.gated_mlp) == ("gelu_tanh", False)
    assert (config.sliding_windows, blueprint.tied) == ((0,) * 4, True)
    up = rule_of(blueprint, "layers.1.up.bias")
    assert (up.source, up.shape) == ("model.layers.1.mlp.c_fc.bias", (80,))
    assert "layers.0.gate.weight" not in {rule.name for rule in blueprint.rules}


def test_what_is_not_supported_is_refused_by_name() -> None:
    with pytest.raises(ModelFormatError, match="hidden_act is 'relu'"):
        read_family("starcoder2", hidden_act="relu")

from __future__ import annotations

import pytest
from family_configs import read_family

from pybatcher.errors import ModelFormatError


def test_what_config_json_leaves_out() -> None:
    blueprint = read_family("seed_oss", num_attention_heads=16, num_key_value_heads=...)
    config = blueprint.config
    assert (config.head_dim, config.n_kv_heads, config.norm_eps) == (128, 8, 1e-6)
    biased = {rule.name for rule in blueprint.rules if rule.name.startswith("layers.0.")}
    biased = {name for name in biased if name.endswith(".bias")}
    assert biased == {"layers.0.q.bias", "layers.0.k.bias", "layers.0.v.bias"}


def test_what_is_not_supported_is_refused_by_name() -> None:
    with pytest.raises(ModelFormatError, match="hidden_act is 'gelu'"):
        read_family("seed_oss", hidden_act="gelu")

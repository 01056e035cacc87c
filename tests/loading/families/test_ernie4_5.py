from __future__ import annotations

import pytest
from family_configs import read_family, rule_of

from pybatcher.errors import ModelFormatError


def test_what_config_json_leaves_out() -> None:
    blueprint = read_family("ernie4_5", num_key_value_heads=...)
    config = blueprint.config
    assert (config.head_dim, config.n_kv_heads, config.norm_eps) == (128, 2, 1e-5)
    assert config.ropes[0].inv_freq[1] == pytest.approx(5e5 ** (-1 / 64))
    assert blueprint.tied


def test_interleaved_pairs_become_halves() -> None:
    blueprint = read_family("ernie4_5", head_dim=6, use_bias=True)
    order = (0, 2, 4, 1, 3, 5)
    assert rule_of(blueprint, "layers.0.q.weight").head_order == order
    assert rule_of(blueprint, "layers.0.k.bias").head_order == order
    assert rule_of(blueprint, "layers.0.down.bias").shape == (48,)


def test_what_is_not_supported_is_refused_by_name() -> None:
    with pytest.raises(ModelFormatError, match="hidden_act is 'gelu'"):
        read_family("ernie4_5", hidden_act="gelu")

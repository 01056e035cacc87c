from __future__ import annotations

from typing import Any

import pytest
from family_configs import read_family, rule_of

from pybatcher.errors import ModelFormatError


def test_what_config_json_leaves_out() -> None:
    blueprint = read_family("cohere2")
    config = blueprint.config
    assert (config.norm, config.norm_bias, config.parallel_blocks) == ("layer", False, True)
    assert (config.logit_scale, blueprint.tied) == (0.0625, True)
    assert config.sliding_windows == (4096, 4096, 4096, 0)
    assert config.layer_ropes == (0, 0, 0, -1)
    assert rule_of(blueprint, "layers.0.q.weight").head_order == (0, 2, 4, 6, 1, 3, 5, 7)
    assert "layers.0.mlp_norm.weight" not in {rule.name for rule in blueprint.rules}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_qk_norm": True}, "use_qk_norm is True"),
        ({"use_parallel_block": False}, "use_parallel_block is False"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"logit_scale": 0}, "logit_scale is 0"),
        ({"sliding_window": None}, "sliding_window is None"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read_family("cohere2", **changes)

from __future__ import annotations

from typing import Any

import pytest
from family_configs import read_family, rule_of

from pybatcher.errors import ModelFormatError


def test_what_config_json_leaves_out() -> None:
    blueprint = read_family("stablelm", hidden_size=96)
    config = blueprint.config
    assert (config.norm, config.norm_bias, config.norm_eps) == ("layer", True, 1e-5)
    assert sum(frequency > 0 for frequency in config.ropes[0].inv_freq) == 2
    order = rule_of(blueprint, "layers.0.q.weight").head_order
    assert order == (0, 1, *range(4, 10), 2, 3, *range(10, 16))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_parallel_residual": True}, "use_parallel_residual is True"),
        ({"qk_layernorm": True}, "qk_layernorm is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read_family("stablelm", hidden_size=96, **changes)

from __future__ import annotations

from typing import Any

import pytest
from family_configs import read_family, rule_of

from pybatcher.errors import ModelFormatError

_DYNAMIC = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}


def test_what_config_json_leaves_out() -> None:
    blueprint = read_family("hunyuan_v1_dense")
    config = blueprint.config
    assert (config.qk_norm_after_rope, config.whole_qk_norm) == (True, False)
    assert (config.norm_eps, blueprint.tied, config.moe) == (1e-5, False, None)
    norm = rule_of(blueprint, "layers.0.q_norm.weight")
    assert norm.source == "model.layers.0.self_attn.query_layernorm.weight"


def test_alpha_stretches_the_base() -> None:
    config = read_family("hunyuan_v1_dense", head_dim=16, rope_scaling=_DYNAMIC).config
    base = 1e4 * 1000 ** (16 / 14)
    assert config.ropes[0].inv_freq[1] == pytest.approx(base ** (-1 / 8))
    without = {**_DYNAMIC, "alpha": None}
    config = read_family("hunyuan_v1_dense", head_dim=16, rope_scaling=without).config
    assert config.ropes[0].inv_freq[1] == pytest.approx(1e4 ** (-1 / 8))


def test_values_of_layers() -> None:
    blueprint = read_family(
        "hunyuan_v1_moe", num_experts=4, moe_topk=[2] * 4, moe_intermediate_size=[80] * 4
    )
    moe = blueprint.config.moe
    assert moe is not None
    assert (moe.n_experts_per_row, moe.intermediate_size, moe.normalised) == (2, 80, True)
    assert (moe.shared_expert, moe.shared_gate) == (True, False)
    shared = rule_of(blueprint, "layers.1.down.weight")
    assert shared.source == "model.layers.1.mlp.shared_mlp.down_proj.weight"
    router = rule_of(blueprint, "layers.1.router.weight")
    assert router.source == "model.layers.1.mlp.gate.wg.weight"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_cla": True}, "use_cla is True"),
        ({"use_qk_norm": False}, "use_qk_norm is False"),
        ({"num_experts": 0}, "num_experts is 0"),
        ({"moe_topk": [1, 1, 1, 2]}, r"moe_topk is \[1, 1, 1, 2\]"),
        ({"moe_topk": []}, r"moe_topk is \[\]"),
        ({"moe_intermediate_size": 40}, "moe_intermediate_size is 40"),
        ({"num_shared_expert": [2] * 4}, "num_shared_expert is 2"),
        ({"rope_scaling": {**_DYNAMIC, "alpha": 0.0}}, "alpha is 0.0"),
        ({"rope_scaling": _DYNAMIC, "head_dim": 2}, "alpha is 1000.0"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read_family("hunyuan_v1_moe", **{"num_experts": 4, **changes})

from __future__ import annotations

from typing import Any

import pytest
from family_configs import read_family, rule_of

from pybatcher.errors import ModelFormatError

PUBLISHED: dict[str, Any] = {
    "head_dim": 16,
    "rotary_dim": 8,
    "attn_type_list": [1] * 4,
    "scoring_func": "sigmoid",
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "use_routing_bias": True,
    "shared_intermediate_size": 0,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def test_what_published_files_say() -> None:
    blueprint = read_family("minimax_m2", **PUBLISHED)
    config = blueprint.config
    assert config.moe is not None
    assert (config.moe.sigmoid, config.moe.normalised, config.moe.n_experts) == (True, True, 8)
    assert config.ropes[0].inv_freq[1] == pytest.approx(5e6**-0.25)
    assert sum(frequency > 0 for frequency in config.ropes[0].inv_freq) == 4
    bias = rule_of(blueprint, "layers.1.expert_bias")
    assert bias.source == "model.layers.1.block_sparse_moe.e_score_correction_bias"
    assert rule_of(blueprint, "layers.0.q_norm.weight").shape == (6 * 16,)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ({"use_qk_norm": False}, "use_qk_norm is False"),
        ({"qk_norm_type": "per_head"}, "qk_norm_type is 'per_head'"),
        ({"use_routing_bias": False}, "use_routing_bias is False"),
        ({"shared_intermediate_size": 8}, "shared_intermediate_size is 8"),
        ({"attn_type_list": [1, 0, 1, 1]}, "attn_type_list is"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read_family("minimax_m2", **{**PUBLISHED, **changes})

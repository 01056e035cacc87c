from __future__ import annotations

from typing import Any

import pytest
from family_configs import read_family

from pybatcher.errors import ModelFormatError


def test_what_config_json_leaves_out() -> None:
    config = read_family("olmoe").config
    assert config.moe is not None
    assert (config.moe.n_experts, config.moe.n_experts_per_row) == (64, 8)
    assert (config.moe.intermediate_size, config.moe.normalised) == (80, False)
    assert (config.whole_qk_norm, config.norm_eps) == (True, 1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clip_qkv": 8.0}, "clip_qkv is 8.0"),
        ({"num_experts": 0}, "num_experts is 0"),
        ({"num_experts_per_tok": 65}, "num_experts_per_tok is 65"),
        ({"norm_topk_prob": 1}, "norm_topk_prob is 1"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read_family("olmoe", **changes)

from __future__ import annotations

from typing import Any

import pytest
from family_configs import read_family, rule_of

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.model_config import LayerShape


def test_what_config_json_leaves_out() -> None:
    blueprint = read_family("qwen2_moe")
    config = blueprint.config
    assert config.moe is not None
    assert (config.moe.n_experts, config.moe.n_experts_per_row) == (60, 4)
    assert (config.moe.intermediate_size, config.moe.shared_expert) == (1408, True)
    assert (config.intermediate_size, config.layer_shapes) == (5632, ())
    assert rule_of(blueprint, "layers.0.q.bias").shape == (48,)


def test_layers_without_experts_are_of_another_width() -> None:
    blueprint = read_family(
        "qwen2_moe", shared_expert_intermediate_size=24, mlp_only_layers=[2], num_experts=4
    )
    widths = [shape.intermediate_size for shape in blueprint.config.layer_shapes]
    assert widths == [24, 24, 80, 24]
    assert blueprint.config.layer_shapes[0] == LayerShape(
        n_kv_heads=2, head_dim=8, intermediate_size=24
    )
    dense = rule_of(blueprint, "layers.2.up.weight")
    assert (dense.source, dense.shape) == ("model.layers.2.mlp.up_proj.weight", (80, 48))
    shared = rule_of(blueprint, "layers.1.up.weight")
    assert (shared.source, shared.shape) == (
        "model.layers.1.mlp.shared_expert.up_proj.weight",
        (24, 48),
    )


def test_windows_are_of_every_second_layer_up_to_one() -> None:
    windows = {"use_sliding_window": True, "sliding_window": 9, "num_experts": 4}
    config = read_family("qwen2_moe", **windows).config
    assert config.sliding_windows == (9, 0, 9, 0)
    config = read_family("qwen2_moe", **windows, max_window_layers=2).config
    assert config.sliding_windows == (9, 0, 0, 0)
    kinds = ["full_attention", "sliding_attention"] * 2
    config = read_family("qwen2_moe", **windows, layer_types=kinds).config
    assert config.sliding_windows == (0, 9, 0, 9)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size is 0"),
        ({"num_experts_per_tok": 61}, "num_experts_per_tok is 61"),
        ({"mlp_only_layers": 1}, "mlp_only_layers is 1"),
    ],
)
def test_what_is_absurd_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read_family("qwen2_moe", **changes)

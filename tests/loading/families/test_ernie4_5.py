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


def test_layers_of_a_mixture() -> None:
    blueprint = read_family(
        "ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_layer_end_index=2, head_dim=6
    )
    config, moe = blueprint.config, blueprint.config.moe
    assert moe is not None
    assert (moe.sigmoid, moe.normalised, moe.shared_expert, moe.shared_gate) == (
        *(False, True),
        *(True, False),
    )
    assert moe.in_layer == (False, True, True, False)
    assert [shape.intermediate_size for shape in config.layer_shapes] == [80, 3072, 3072, 80]
    shared = rule_of(blueprint, "layers.1.down.weight")
    assert shared.source == "model.layers.1.mlp.shared_experts.down_proj.weight"
    dense = rule_of(blueprint, "layers.3.down.weight")
    assert dense.source == "model.layers.3.mlp.down_proj.weight"
    bias = rule_of(blueprint, "layers.1.expert_bias")
    assert bias.source == "model.layers.1.mlp.moe_statics.e_score_correction_bias"
    assert rule_of(blueprint, "layers.1.q.weight").head_order == (0, 2, 4, 1, 3, 5)


def test_mixtures_without_a_shared_expert_or_without_experts() -> None:
    blueprint = read_family(
        "ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_num_shared_experts=0, moe_layer_interval=2
    )
    moe = blueprint.config.moe
    assert moe is not None
    assert (moe.in_layer, moe.shared_expert) == ((False, True, False, True), False)
    names = {rule.name for rule in blueprint.rules}
    assert "layers.0.down.weight" in names
    assert "layers.1.down.weight" not in names
    assert read_family("ernie4_5_moe", moe_layer_start_index=4).config.moe is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_bias": True}, "use_bias is True"),
        ({"moe_norm_min": 0.1}, "moe_norm_min is 0.1"),
        ({"moe_num_shared_experts": 65}, "moe_num_shared_experts is 65"),
        ({"moe_num_experts": [64, 64]}, "moe_num_experts is"),
        ({"moe_k": 65}, "moe_k is 65"),
        ({"moe_layer_interval": 0}, "moe_layer_interval is 0"),
    ],
)
def test_options_of_mixtures_are_refused_by_name(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read_family("ernie4_5_moe", **changes)

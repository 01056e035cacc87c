from __future__ import annotations

import pytest
from family_configs import read_family, rule_of

from pybatcher.errors import ModelFormatError


def test_what_config_json_leaves_out() -> None:
    blueprint = read_family("glm4")
    config = blueprint.config
    assert (config.head_dim, config.norm_eps, config.post_norm) == (128, 1.5625e-7, True)
    assert sum(frequency > 0 for frequency in config.ropes[0].inv_freq) == 32
    assert rule_of(blueprint, "layers.0.q.bias").shape == (6 * 128,)


def test_interleaved_pairs_become_halves() -> None:
    blueprint = read_family("glm4", head_dim=8)
    order = (0, 2, 4, 5, 1, 3, 6, 7)
    assert rule_of(blueprint, "layers.0.q.weight").head_order == order
    assert rule_of(blueprint, "layers.0.k.bias").head_order == order
    assert rule_of(blueprint, "layers.0.v.weight").head_order == ()
    assert rule_of(blueprint, "layers.3.up.weight").rows == (80, 160)


def test_what_is_not_supported_is_refused_by_name() -> None:
    with pytest.raises(ModelFormatError, match=r"partial_rotary_factor is 0\.3"):
        read_family("glm4", partial_rotary_factor=0.3, head_dim=10)


def test_layers_of_glm_4_5() -> None:
    blueprint = read_family(
        "glm4_moe", n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=2
    )
    config, moe = blueprint.config, blueprint.config.moe
    assert moe is not None
    assert (moe.sigmoid, moe.shared_expert, moe.shared_gate) == (True, True, False)
    assert moe.in_layer == (False, True, True, True)
    assert [shape.intermediate_size for shape in config.layer_shapes] == [80, *[2816] * 3]
    shared = rule_of(blueprint, "layers.1.down.weight")
    assert shared.source == "model.layers.1.mlp.shared_experts.down_proj.weight"
    dense = rule_of(blueprint, "layers.0.down.weight")
    assert dense.source == "model.layers.0.mlp.down_proj.weight"
    assert rule_of(blueprint, "layers.2.expert_bias").shape == (4,)


@pytest.mark.parametrize("name", ["n_group", "topk_group"])
def test_groups_of_experts_are_refused_by_name(name: str) -> None:
    with pytest.raises(ModelFormatError, match=f"{name} is 2"):
        read_family("glm4_moe", **{name: 2})

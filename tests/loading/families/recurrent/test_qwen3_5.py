from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.blueprint import Blueprint
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.tensors import Tensor, gather
from pybatcher.loading.families import read_blueprint

BASE: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [1, 1, 0],
        "mrope_interleaved": True,
    },
}


def read(**changes: Any) -> Blueprint:
    return read_blueprint(Fields({**BASE, **changes}, "config.json"))


def test_which_layers_are_recurrent() -> None:
    config = read().config
    assert config.gated_delta_net is not None
    assert config.gated_delta_net.in_layer == (True, True, True, False) * 2
    assert config.layer_ropes == (-1, -1, -1, 0) * 2
    assert config.attention_gate
    kinds = ["full_attention", "linear_attention"] * 4
    gated_delta_net = read(layer_types=kinds).config.gated_delta_net
    assert gated_delta_net is not None
    assert gated_delta_net.in_layer == (False, True) * 4
    gated_delta_net = read(full_attention_interval=2).config.gated_delta_net
    assert gated_delta_net is not None
    assert gated_delta_net.in_layer == (True, False) * 4


def test_defaults_are_those_of_transformers() -> None:
    left_out = ("head_dim", "linear_num_key_heads", "linear_num_value_heads", "rope_parameters")
    fields = {name: value for name, value in BASE.items() if name not in left_out}
    config = read_blueprint(Fields(fields, "config.json")).config
    assert config.gated_delta_net is not None
    assert (config.gated_delta_net.n_key_heads, config.gated_delta_net.n_value_heads) == (16, 32)
    assert config.head_dim == 256
    assert sum(frequency > 0 for frequency in config.ropes[0].inv_freq) == 32


def test_queries_and_gates_are_rows_of_one_product() -> None:
    """Of each head first its queries, whose rows that turn together are brought together."""
    blueprint = read(num_attention_heads=2, num_key_value_heads=1, head_dim=8, hidden_size=4)
    rules = {rule.name: rule for rule in blueprint.rules}
    source = "model.layers.3.self_attn.q_proj.weight"
    array = np.repeat(np.arange(32, dtype=np.float32)[:, None], 4, axis=1)
    made = gather(
        [rules["layers.3.q.weight"], rules["layers.3.attn_gate.weight"]],
        {source: Tensor(array, "f32", source)},
        "here",
    )
    queries = made["layers.3.q.weight"].array[:, 0].tolist()
    assert queries == [0, 2, 3, 4, 1, 5, 6, 7, 16, 18, 19, 20, 17, 21, 22, 23]
    gates = made["layers.3.attn_gate.weight"].array[:, 0].tolist()
    assert gates == [*range(8, 16), *range(24, 32)]


def test_what_is_added_and_turned_round() -> None:
    rules = {rule.name: rule for rule in read().rules}
    for name in ("layers.0.attn_norm", "layers.0.mlp_norm", "layers.3.q_norm", "final_norm"):
        assert rules[f"{name}.weight"].plus == 1.0
    assert rules["layers.0.gated_delta_net.norm.weight"].plus == 0.0
    assert "layers.0.q.weight" not in rules
    assert "layers.3.gated_delta_net.qkv.weight" not in rules
    decay, convolution = (
        rules["layers.0.gated_delta_net.decay"],
        rules["layers.0.gated_delta_net.convolution"],
    )
    logarithms = np.array([-1.0, 0.0, 0.5, 2.0], np.float32)
    taps = np.arange(80 * 4, dtype=np.float32).reshape(80, 1, 4)
    made = gather(
        [decay, convolution],
        {
            decay.source: Tensor(logarithms, "f32", decay.source),
            convolution.source: Tensor(taps, "f32", convolution.source),
        },
        "here",
    )
    np.testing.assert_allclose(made[decay.name].array, -np.exp(logarithms))
    np.testing.assert_array_equal(made[convolution.name].array, taps[:, 0])


def test_a_model_with_images_has_its_text_model_inside() -> None:
    fields = {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "tie_word_embeddings": True,
        "text_config": {k: v for k, v in BASE.items() if k != "architectures"},
    }
    blueprint = read_blueprint(Fields(fields, "config.json"))
    assert blueprint.tied
    assert blueprint.text_prefixes
    assert blueprint.config == read().config
    assert blueprint.vision is None  # without vision_config


def test_a_model_with_images_has_a_tower() -> None:
    vision = {"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2}
    fields = {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": {k: v for k, v in BASE.items() if k != "architectures"},
        "vision_config": {**vision, "out_hidden_size": 48},
    }
    blueprint = read_blueprint(Fields(fields, "config.json"))
    assert blueprint.vision is not None
    assert blueprint.vision.width == 48
    assert blueprint.vision.deepstack == ()
    (rope,) = blueprint.config.ropes
    assert rope.axes == (0, 1, *(0,) * 6)  # 2 of 8 pairs are rotated
    assert blueprint.without_vision().config == read().config


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layer_types": ["linear_attention"] * 8}, "'full_attention'"),
        ({"layer_types": ["full_attention"] * 7}, "a list of 8 layer types"),
        ({"layer_types": [3] * 8}, "'full_attention' and 'linear_attention'"),
        ({"layer_types": "linear_attention"}, "a list of 8"),
        ({"linear_num_value_heads": 3}, "a multiple of 2 key heads"),
        ({"linear_num_key_heads": 0}, "linear_num_key_heads"),
        ({"linear_conv_kernel_dim": 0}, "from 1 to 64"),
        ({"linear_key_head_dim": 1 << 20}, "linear_key_head_dim"),
        ({"linear_key_head_dim": True}, "linear_key_head_dim"),
        ({"linear_num_value_heads": 4096, "linear_value_head_dim": 1024}, "in all heads"),
        ({"full_attention_interval": 9}, "one or more layers"),
        ({"full_attention_interval": 0}, "full_attention_interval"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attn_output_gate": False}, "attn_output_gate"),
    ],
    ids=str,
)
def test_what_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelFormatError, match=expected):
        read(**changes)


MOE = {
    **{name: value for name, value in BASE.items() if name != "intermediate_size"},
    "model_type": "qwen3_5_moe_text",
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}


def test_mixtures_have_a_shared_expert() -> None:
    blueprint = read_blueprint(Fields(MOE, "config.json"))
    moe = blueprint.config.moe
    assert moe is not None
    assert moe.shared_expert
    assert moe.normalised
    assert (moe.n_experts, moe.n_experts_per_row, moe.intermediate_size) == (4, 2, 24)
    assert blueprint.config.intermediate_size == 32
    rules = {rule.name: rule for rule in blueprint.rules}
    gate = rules["layers.0.shared_gate"]
    row = np.arange(48, dtype=np.float32)
    made = gather([gate], {gate.source: Tensor(row[None], "f32", gate.source)}, "here")
    np.testing.assert_array_equal(made[gate.name].array, row)
    assert rules["layers.7.up.weight"].source == "model.layers.7.mlp.shared_expert.up_proj.weight"
    assert rules["layers.3.experts.3.down.weight"].shape == (48, 24)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_experts", 0),
        ("num_experts", 100_000),
        ("num_experts_per_tok", 5),
        ("moe_intermediate_size", "24"),
        ("shared_expert_intermediate_size", 0),
    ],
)
def test_mixtures_that_are_refused(name: str, value: object) -> None:
    with pytest.raises(ModelFormatError, match=name):
        read_blueprint(Fields({**MOE, name: value}, "config.json"))

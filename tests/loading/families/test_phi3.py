from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.blueprint import Blueprint
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.tensors import Tensor
from pybatcher.loading.families import read_blueprint

BASE = {
    "model_type": "phi3",
    "architectures": ["Phi3ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16384,
}
FACTORS = {"short_factor": [1.0, 2.0, 3.0], "long_factor": [4.0, 5.0, 6.0]}


def read(**changes: Any) -> Blueprint:
    return read_blueprint(Fields({**BASE, **changes}, "config.json"))


def test_what_it_leaves_out() -> None:
    blueprint = read()
    config = blueprint.config
    assert (config.norm_eps, config.sliding_windows, blueprint.tied) == (1e-5, (0, 0), False)
    assert (config.ropes[0].long_inv_freq, config.ropes[0].original_positions) == ((), 0)
    assert not any(rule.head_order or rule.name.endswith("bias") for rule in blueprint.rules)
    assert read(sliding_window=7).config.sliding_windows == (7, 7)


@pytest.mark.parametrize("name", ["longrope", "su", "yarn"])
def test_longrope_as_files_of_phi_have_it(name: str) -> None:
    scaling = {"type": name, **FACTORS}
    (rope,) = read(rope_scaling=scaling, partial_rotary_factor=0.75).config.ropes
    assert rope.original_positions == 4096  # by default
    expected = [1.0, 1e4 ** (-1 / 3) / 2, 1e4 ** (-2 / 3) / 3, 0.0]
    np.testing.assert_allclose(rope.inv_freq, expected, rtol=1e-6)
    assert rope.long_inv_freq[0] == 0.25
    assert rope.attention_factor == pytest.approx((1 + np.log(4) / np.log(4096)) ** 0.5)


def test_fused_weights_are_cut_and_heads_reordered() -> None:
    blueprint = read(partial_rotary_factor=0.5)
    rules = {rule.name: rule for rule in blueprint.rules}
    shapes = {rule.source: rule.shape for rule in blueprint.rules}
    available = {
        source: Tensor(
            np.arange(np.prod(shape), dtype=np.float32).reshape(shape), "f32", source, mapped=True
        )
        for source, shape in shapes.items()
    }
    tensors = blueprint.fill(available, "model")
    qkv = available["model.layers.1.self_attn.qkv_proj.weight"].array
    gate_up = available["model.layers.1.mlp.gate_up_proj.weight"].array
    order = [0, 1, 4, 5, 2, 3, 6, 7]
    assert rules["layers.1.q.weight"].head_order == tuple(order)
    q, k, v = (tensors[f"layers.1.{name}.weight"] for name in "qkv")
    for head in range(6):
        np.testing.assert_array_equal(q.array[head * 8 :][:8], qkv[head * 8 :][:8][order])
    for head in range(2):
        np.testing.assert_array_equal(k.array[head * 8 :][:8], qkv[48 + head * 8 :][:8][order])
    np.testing.assert_array_equal(v.array, qkv[64:])
    assert (q.mapped, k.mapped, v.mapped) == (False, False, True)
    np.testing.assert_array_equal(tensors["layers.1.gate.weight"].array, gate_up[:80])
    np.testing.assert_array_equal(tensors["layers.1.up.weight"].array, gate_up[80:])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_scaling: long_factor is missing"),
        ({"rope_scaling": {"type": "longrope", **FACTORS}}, "long_factor is .*a list of 4 numbers"),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor is 0.4"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"architectures": ["Phi4ForCausalLMV"]}, r"expected \['Phi3ForCausalLM'\]"),
    ],
)
def test_what_is_not_supported_or_absurd_is_refused_by_name(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFormatError, match=f"^config.json: .*{said}"):
        read(**changes)

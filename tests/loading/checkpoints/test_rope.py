"""Rotary frequencies, against transformers as the oracle."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma4TextConfig, LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.rope import (
    Rope,
    multimodal_axes,
    read_proportional_rope,
    read_rope,
    read_rotary_dim,
    rotary_order,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "dynamic", "factor": 6.0},
    LLAMA3,
    {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 256},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.0},
    {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.25, "beta_fast": 16.0},
    {"rope_type": "yarn", "factor": 2.0, "truncate": False, "beta_slow": 2.0},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128},
]


def read(head_dim: int = 64, max_positions: int = 131072, **fields: Any) -> Rope:
    return read_rope(Fields(fields, "config.json"), head_dim, max_positions)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_frequencies_are_those_of_transformers(scaling: dict[str, Any]) -> None:
    smallest = 4 if scaling["rope_type"] == "dynamic" else 2  # transformers divides by n - 2
    for theta, head_dim in itertools.product((100.0, 10000.0, 500000.0), (smallest, 20, 64, 128)):
        check_frequencies(scaling, theta, head_dim)


def check_frequencies(scaling: dict[str, Any], theta: float, head_dim: int) -> None:
    parameters = {**scaling, "rope_theta": theta}
    config = LlamaConfig(
        head_dim=head_dim, max_position_embeddings=131072, rope_parameters=dict(parameters)
    )
    kind = scaling["rope_type"]
    make = ROPE_INIT_FUNCTIONS.get(kind, LlamaRotaryEmbedding.compute_default_rope_parameters)
    expected, factor = make(config)
    rope = read(head_dim, rope_parameters=parameters)
    # transformers computes in float32: powers and quotients, a few roundings of 6e-8.
    np.testing.assert_allclose(rope.inv_freq, expected.to(torch.float64), rtol=1e-6, atol=0)
    assert rope.attention_factor == pytest.approx(factor, rel=1e-6)
    assert all(np.float32(value) == value for value in rope.inv_freq)


@pytest.mark.parametrize("rotary_dim", [4, 12, 16])
@pytest.mark.parametrize("factors", [{}, {"factor": 3.0}, {"attention_factor": 1.5}])
@pytest.mark.parametrize("original", [4096, 131072, 262144])
def test_longrope_is_that_of_transformers(
    original: int, factors: dict[str, float], rotary_dim: int
) -> None:
    rng = np.random.default_rng([rotary_dim, original])
    short, long = rng.uniform(1, 50, (2, rotary_dim // 2)).tolist()
    parameters = {**LONGROPE, **factors, "short_factor": short, "long_factor": long}
    parameters["partial_rotary_factor"] = rotary_dim / 16
    config = Phi3Config(
        hidden_size=32,
        num_attention_heads=2,
        max_position_embeddings=131072,
        original_max_position_embeddings=original,
        rope_parameters={**parameters, "rope_theta": 1e4},
    )
    fields = Fields(config.to_dict(), "config.json")
    rope = read_rope(fields, 16, 131072, rotary_dim=read_rotary_dim(fields, 16))
    make = ROPE_INIT_FUNCTIONS["longrope"]
    kept = [0.0] * (8 - rotary_dim // 2)
    for found, seq_len in ((rope.inv_freq, original), (rope.long_inv_freq, original + 1)):
        expected, factor = make(config, seq_len=seq_len)
        np.testing.assert_allclose(found, [*expected.tolist(), *kept], rtol=1e-6)
        assert rope.attention_factor == pytest.approx(factor, rel=1e-6)
    assert rope.original_positions == original


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(2, 2), (8, 2), (16, 12), (128, 96)])
def test_rows_that_turn_together_are_half_a_head_apart(head_dim: int, rotary_dim: int) -> None:
    order = rotary_order(head_dim, rotary_dim)
    if head_dim == rotary_dim:
        assert order == ()
        return
    assert sorted(order) == list(range(head_dim))
    pairs = list(zip(order[: head_dim // 2], order[head_dim // 2 :], strict=True))
    half = rotary_dim // 2
    assert pairs[:half] == [(i, i + half) for i in range(half)]
    assert all(min(pair) >= rotary_dim for pair in pairs[half:])


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3125, 1.5, "1"])  # 0, 0, 5, 24 of 16
def test_parts_of_a_head_that_cannot_turn(part: Any) -> None:
    with pytest.raises(ModelFormatError, match="partial_rotary_factor is"):
        read_rotary_dim(Fields({"partial_rotary_factor": part}, "config.json"), 16)


def test_the_part_of_a_head_that_turns() -> None:
    assert read_rotary_dim(Fields({}, "config.json"), 16) == 16
    assert read_rotary_dim(Fields({"partial_rotary_factor": 0.75}, "config.json"), 16) == 12
    scaling = {"rope_scaling": {"partial_rotary_factor": 0.5}, "partial_rotary_factor": 0.75}
    assert read_rotary_dim(Fields(scaling, "config.json"), 16) == 8


def test_axes_of_rows_with_three_positions() -> None:
    """transformers: chunks in Qwen2.5-VL; interleaved, time first, in Qwen3-VL."""

    def axes(section: Any, head_dim: int, *, interleaved: bool) -> str:
        fields = Fields({"mrope_section": section}, "config.json")
        found = multimodal_axes(fields, head_dim, (4, 2, 2), interleaved=interleaved)
        return "".join(map(str, found))

    assert axes([2, 3, 3], 16, interleaved=False) == "00111222"
    assert axes([2, 3, 3], 16, interleaved=True) == "01201201"
    assert axes(None, 16, interleaved=True) == "01201200"
    assert axes([11, 11, 10], 64, interleaved=True) == "012" * 10 + "01"
    with pytest.raises(
        ModelFormatError, match=r"mrope_section is .*; expected a list whose sum is"
    ):
        axes([2, 3, 2], 16, interleaved=False)


def test_both_spellings_say_the_same() -> None:
    new = read(rope_parameters={**LLAMA3, "rope_theta": 500000.0})
    old = read(rope_theta=500000.0, rope_scaling=LLAMA3)
    older = read(
        rope_theta=500000,
        rope_scaling={"type": "llama3", **{k: v for k, v in LLAMA3.items() if k != "rope_type"}},
    )
    assert new == old == older
    assert read(rope_theta=10000.0, rope_scaling=None) == read() == read(rope_parameters={})
    assert read(rope_scaling={}, rope_parameters={**LLAMA3, "rope_theta": 500000.0}) == new


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rope_scaling": {"type": "ntk", "factor": 2.0}}, "type is 'ntk'.*'llama3'"),
        ({"rope_parameters": {"rope_type": "proportional"}}, "rope_type is 'proportional'"),
        ({"rope_scaling": {"type": "dynamic"}}, "factor is missing"),
        ({"rope_scaling": {**LONGROPE, "long_factor": ...}}, "long_factor is Ellipsis"),
        ({"rope_scaling": {**LONGROPE, "short_factor": [1.0] * 31}}, "a list of 32 numbers"),
        ({"rope_scaling": {**LONGROPE, "short_factor": [0.0] * 32}}, "a list of 32 numbers"),
        ({"rope_scaling": {**LONGROPE, "short_factor": ["1"] * 32}}, "a list of 32 numbers"),
        ({"rope_scaling": LONGROPE, "original_max_position_embeddings": 1}, "more than 1"),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, "rope_type is .*a text"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; expected an object"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0"),
        ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, "factor is nan"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor is '2'"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "more than low_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": ...}}, "low_freq_factor is Ellipsis"),
        ({"rope_theta": -1.0}, "rope_theta is -1"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": True}, "rope_theta is True"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"full_attention": {}}}, "full_attention"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": -1}}, "factor is -1"),
    ],
)
def test_unsupported_fields_are_refused_by_name(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read(**fields)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.25, 0.7, 1.0])
@pytest.mark.parametrize("head_dim", [2, 22, 64, 512])
def test_proportional_frequencies_are_those_of_transformers(head_dim: int, part: float) -> None:
    scaling = {
        "rope_type": "proportional",
        "rope_theta": 1e6,
        "partial_rotary_factor": part,
        "factor": 3.0,
    }
    parameters = {"full_attention": scaling, "sliding_attention": {"rope_type": "default"}}
    parameters["sliding_attention"]["rope_theta"] = 1e4
    config = Gemma4TextConfig(
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        global_head_dim=head_dim,
        rope_parameters=parameters,
    )
    expected, _ = ROPE_INIT_FUNCTIONS["proportional"](config, layer_type="full_attention")
    rope = read_proportional_rope(Fields(scaling, "config.json"), head_dim)
    np.testing.assert_allclose(rope.inv_freq, expected.numpy(), rtol=1e-6)
    assert rope.attention_factor == 1.0

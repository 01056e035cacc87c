"""Rotary frequencies, against transformers as the oracle."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pybatcher.errors import ModelFormatError
from pybatcher.loading.fields import Fields
from pybatcher.loading.rope import Rope, read_rope

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
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
    for theta, head_dim in itertools.product((100.0, 10000.0, 500000.0), (2, 20, 64, 128)):
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


def test_both_spellings_say_the_same() -> None:
    new = read(rope_parameters={**LLAMA3, "rope_theta": 500000.0})
    old = read(rope_theta=500000.0, rope_scaling=LLAMA3)
    older = read(
        rope_theta=500000,
        rope_scaling={"type": "llama3", **{k: v for k, v in LLAMA3.items() if k != "rope_type"}},
    )
    assert new == old == older
    assert read(rope_theta=10000.0, rope_scaling=None) == read() == read(rope_parameters={})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "type is 'dynamic'.*'llama3'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type is 'longrope'"),
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

"""Keys that architectures have of their own; logits are compared in test_model.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gguf_configs import read_config

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.model_config import ModelConfig

SIZES: dict[str, Any] = {
    "block_count": 7,
    "context_length": 512,
    "embedding_length": 48,
    "feed_forward_length": 88,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def read(architecture: str, **changes: Any) -> ModelConfig:
    """Read SIZES with changes; `__` in a name is a dot."""
    keys = {**SIZES, **{key.replace("__", "."): value for key, value in changes.items()}}
    fields = {f"{architecture}.{key}": value for key, value in keys.items()}
    fields["general.architecture"] = architecture
    return read_config(Fields(fields, "model.gguf"), 384, None)


def test_gemma_2() -> None:
    config = read("gemma2")
    assert config.sliding_windows == (4096, 0, 4096, 0, 4096, 0, 4096)
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    assert (config.activation, config.post_norm, config.pre_norm) == ("gelu_tanh", True, True)
    assert (config.embedding_scale, config.attention_scale) == (48**0.5, 1 / 4)
    assert config.layer_ropes == (0,) * 7
    changed = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}
    config = read("gemma2", **changed, attention__sliding_window=9)
    assert (config.attention_softcap, config.logit_softcap) == (3.0, 4.0)
    assert config.sliding_windows == (9, 0, 9, 0, 9, 0, 9)


def test_gemma_3() -> None:
    config = read("gemma3", rope__freq_base=1e6, rope__scaling__factor=8.0)
    assert config.sliding_windows == (0,) * 7  # no window, no layers that see one
    assert (config.attention_softcap, config.logit_softcap) == (0.0, 0.0)
    windowed = {"attention__sliding_window": 9, "rope__scaling__factor": 8.0}
    config = read("gemma3", rope__freq_base=1e6, **windowed)
    assert config.sliding_windows == (9, 9, 9, 9, 9, 0, 9)
    assert config.layer_ropes == (1, 1, 1, 1, 1, 0, 1)
    full, sliding = config.ropes
    np.testing.assert_allclose(full.inv_freq[:2], (1 / 8, 1e6 ** (-1 / 8) / 8), rtol=1e-6)
    np.testing.assert_allclose(sliding.inv_freq[:2], (1, 1e4 ** (-1 / 8)), rtol=1e-6)
    config = read("gemma3", rope__freq_base_swa=100.0, **windowed)
    np.testing.assert_allclose(config.ropes[1].inv_freq[1], 100 ** (-1 / 8), rtol=1e-6)


def test_granite() -> None:
    config = read("granite", logit_scale=8.0)
    plain = read("llama")
    assert config == replace(plain, architecture="granite", logit_scale=1 / 8)
    config = read(
        "granite",
        logit_scale=8.0,
        residual_scale=0.5,
        embedding_scale=12.0,
        attention__scale=0.125,
    )
    assert (config.logit_scale, config.attention_scale) == (1 / 8, 0.125)
    assert (config.embedding_scale, config.norm_eps) == (24.0, 4e-5)
    zeros = {"residual_scale": 0.0, "embedding_scale": 0.0, "attention__scale": 0.0}
    assert read("granite", logit_scale=8.0, **zeros) == read("granite", logit_scale=8.0)


def test_granite_without_rope() -> None:
    """llama.cpp's converter writes the key for models with and without positions."""
    assert read("granite", logit_scale=8.0, rope__scaling__finetuned=True).layer_ropes == (0,) * 7
    config = read("granite", logit_scale=8.0, rope__scaling__finetuned=False)
    assert config.layer_ropes == (-1,) * 7


def test_olmo_2() -> None:
    config = read("olmo2")
    norms = {"pre_norm": False, "post_norm": True, "whole_qk_norm": True}
    assert config == replace(read("llama"), architecture="olmo2", **norms)


def test_olmo_3() -> None:
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    config = read("olmo2", rope__freq_base=100.0, attention__sliding_window=9, **yarn)
    assert config.sliding_windows == (9, 9, 9, 0, 9, 9, 9)
    assert config.layer_ropes == (1, 1, 1, 0, 1, 1, 1)
    assert config.ropes[0] == read("olmo2", rope__freq_base=100.0, **yarn).ropes[0]
    assert config.ropes[1] == read("olmo2", rope__freq_base=100.0).ropes[0]


@pytest.mark.parametrize(("architecture", "n_layers"), [("gemma2", 46), ("gemma3", 62)])
def test_scores_of_27b_are_scaled_by_the_width_of_the_stream(
    architecture: str, n_layers: int
) -> None:
    assert read(architecture, block_count=n_layers).attention_scale == 8**-0.5


def test_the_pattern_of_windows_may_be_in_the_file() -> None:
    window = {"attention__sliding_window": 9}
    every_third = read("gemma3", **window, attention__sliding_window_pattern=3)
    assert every_third.sliding_windows == (9, 9, 0, 9, 9, 0, 9)
    pattern = np.array([True, False, False, True, True, False, True])
    by_layer = read("gemma3", **window, attention__sliding_window_pattern=pattern)
    assert by_layer.sliding_windows == (9, 0, 0, 9, 9, 0, 9)
    assert by_layer.layer_ropes == (1, 0, 0, 1, 1, 0, 1)


@pytest.mark.parametrize(
    ("architecture", "changes", "said"),
    [
        ("gemma3", {"attention__sliding_window": -1}, "gemma3.attention.sliding_window is -1"),
        (
            "gemma3",
            {"attention__sliding_window": 9, "attention__sliding_window_pattern": np.ones(3, bool)},
            "sliding_window_pattern is array.*expected a truth value for each of 7 layers, or",
        ),
        ("gemma2", {"attention__sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ("gemma2", {"attn_logit_softcapping": float("nan")}, "attn_logit_softcapping is nan"),
        ("gemma2", {"attention__scale": 2.0}, "gemma2.attention.scale is 2.0"),
        ("granite", {}, "granite.logit_scale is missing"),
        ("granite", {"logit_scale": 0.0}, "granite.logit_scale is 0.0"),
        ("granite", {"logit_scale": 1.0, "residual_scale": -1.0}, "residual_scale is -1.0"),
        ("granite", {"logit_scale": 1.0, "residual_scale": 1e-300}, "residual_scale is 1e-300"),
        ("olmo2", {"attention__scale": 2.0}, "olmo2.attention.scale is 2.0"),
        ("qwen3", {"attention__sliding_window": 9}, "qwen3.attention.sliding_window is 9"),
    ],
)
def test_what_is_absurd_is_refused_by_name(
    architecture: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFormatError, match=rf"model\.gguf: .*{said}"):
        read(architecture, **changes)

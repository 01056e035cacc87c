"""bench.gpu.layers: finding a layer's kernels among what a GPU did."""

from __future__ import annotations

import pytest

from bench.gpu.layers import Launched, Task, describe, layers_of

LAYER = (
    "rms_norm_bf16",
    "gemm",
    "rope",
    "attention_small",
    "gemm",
    "rms_norm_bf16",
    "gemm",
    "silu",
)


def launches(*names: str) -> list[Launched]:
    """Each takes 2 us more than the one before it; there is 1 us between two."""
    found, at = [], 0.0
    for i, name in enumerate(names):
        found.append((at, at + 2 * i, name))
        at += 2 * i + 1
    return found


def test_tasks_say_what_they_measure() -> None:
    assert Task.parse("p8192") == Task("p8192", True, 8192, 128)
    assert Task.parse("d64") == Task("d64", False, 64, 128)
    assert Task.parse("d32@4096") == Task("d32@4096", False, 32, 4096)
    assert Task.parse("d32@4096").positions >= 32 * 4096


def test_layers_lie_between_norms_and_the_head_is_none() -> None:
    names = ("embed", *LAYER * 3, "rms_norm_bf16", "gemm", "find_likeliest", "rms_norm_bf16")
    layers = layers_of(launches(*names))
    assert [[name for _, _, name in layer] for layer in layers] == [list(LAYER)] * 3
    row = describe(Task.parse("d1"), 0.5, layers)
    assert row["task"] == "d1"
    assert row["kernels_us"][0] == ["rms_norm_bf16", 18.0]  # the second layer's, of 2, 18 and 34
    assert row["layer_us"] == sum(us for _, us in row["kernels_us"]) + len(LAYER) - 1


def test_a_run_without_layers_is_an_error() -> None:
    with pytest.raises(ValueError, match="no layer was found"):
        layers_of(launches("gemm", "rms_norm_bf16", "gemm"))

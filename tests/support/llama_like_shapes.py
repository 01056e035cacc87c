"""Random configurations of architectures that differ from Llama in a few fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["LLAMA_LIKE", "llama_like_shape"]


def llama_like_shape(
    family: str, rng: np.random.Generator, shape: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the architecture of a family and a random configuration of it.

    shape: a random one of Llama's fields.
    """
    architecture, changed = LLAMA_LIKE[family](rng, shape)
    return architecture, {**shape, **changed}


def _smollm3(rng: np.random.Generator, shape: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    n_layers = shape["num_hidden_layers"]
    layers: dict[str, Any] = {"no_rope_layer_interval": int(rng.integers(1, 4))}
    if rng.integers(2):
        layers = {"no_rope_layers": rng.integers(0, 2, n_layers).tolist()}
    windows = {"use_sliding_window": bool(rng.integers(2)), "sliding_window": 21}
    biases = {"attention_bias": bool(rng.integers(2)), "mlp_bias": bool(rng.integers(2))}
    return "smollm3", {**layers, **windows, **biases}


LLAMA_LIKE: dict[
    str, Callable[[np.random.Generator, dict[str, Any]], tuple[str, dict[str, Any]]]
] = {
    "smollm3": _smollm3,
}

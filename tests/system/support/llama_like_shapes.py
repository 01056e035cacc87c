"""Random configurations of architectures that differ from Llama in a few fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["LLAMA_LIKE", "llama_like_shape"]

KINDS = ("sliding_attention", "full_attention")


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
    windows: dict[str, Any] = {"use_sliding_window": bool(rng.integers(2)), "sliding_window": 21}
    if not windows["use_sliding_window"] or rng.integers(2):  # these count all the same
        windows["layer_types"] = rng.choice(KINDS, n_layers).tolist()
    biases = {"attention_bias": bool(rng.integers(2)), "mlp_bias": bool(rng.integers(2))}
    return "smollm3", {**layers, **windows, **biases}


def _phi3(rng: np.random.Generator, shape: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Of Phi-3-mini-4k: no scaling, perhaps a window; Phi-4-mini: a part of the head rotates."""
    rope = shape["rope_parameters"]
    if rng.integers(2):
        rope = {**rope, "partial_rotary_factor": 0.5}
        shape["head_dim"] = 4 * int(rng.integers(2, 9))
    window = None if rng.integers(2) else int(rng.integers(3, 60))
    return "phi3", {"rope_parameters": rope, "sliding_window": window}


def _longrope(
    rng: np.random.Generator, shape: dict[str, Any], original: int
) -> tuple[str, dict[str, Any]]:
    rotary_dim = 6 * int(rng.integers(1, 4))
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.75,
        "short_factor": rng.uniform(1, 2, rotary_dim // 2).tolist(),
        "long_factor": rng.uniform(2, 20, rotary_dim // 2).tolist(),
    }
    sizes = {
        "head_dim": rotary_dim // 3 * 4,
        "hidden_size": shape["num_attention_heads"] * rotary_dim // 3 * 4,  # of which it checks
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": original,
    }
    return "phi3", {"rope_parameters": rope, **sizes}


def _phi3_short(rng: np.random.Generator, shape: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return _longrope(rng, shape, 2048)  # as many positions as the engine has


def _phi3_long(rng: np.random.Generator, shape: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return _longrope(rng, shape, 200)  # fewer than the prompt


def _internlm3(rng: np.random.Generator, shape: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    biased = bool(rng.integers(2))
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 6.0}
    return "internlm3", {"attention_bias": biased, "mlp_bias": biased, "rope_parameters": rope}


def _ministral(rng: np.random.Generator, shape: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    kinds = [*KINDS] * shape["num_hidden_layers"]
    layers = {"layer_types": kinds[: shape["num_hidden_layers"]]} if rng.integers(2) else {}
    return "ministral", {"sliding_window": int(rng.integers(3, 60)), **layers}


def _ministral3(rng: np.random.Generator, shape: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """With a prompt of several original contexts."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "original_max_position_embeddings": int(rng.integers(30, 100)),
        "mscale": 1.0,
        "mscale_all_dim": float(rng.choice([0.7, 1.0])),
        "beta_fast": float(rng.choice([16.0, 32.0])),
        "llama_4_scaling_beta": float(rng.choice([0.1, 0.7])),
    }
    window = None if rng.integers(2) else 21
    return "ministral3", {"rope_parameters": rope, "sliding_window": window}


LLAMA_LIKE: dict[
    str, Callable[[np.random.Generator, dict[str, Any]], tuple[str, dict[str, Any]]]
] = {
    "smollm3": _smollm3,
    "phi3": _phi3,
    "phi3_short": _phi3_short,
    "phi3_long": _phi3_long,
    "internlm3": _internlm3,
    "ministral": _ministral,
    "ministral3": _ministral3,
}

"""Random configurations of Gemma 4: like E2B, 31B, 26B-A4B, and with any of its parts."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["GEMMA4", "gemma4_shape"]

GEMMA4 = ("gemma4_e2b", "gemma4_31b", "gemma4_any", "gemma4_moe")


def gemma4_shape(
    family: str, rng: np.random.Generator, shape: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the architecture of one of GEMMA4 and a random configuration of it.

    shape: a random one of Llama's fields.
    """
    n_layers = int(rng.integers(4, 7))
    fields = {
        **shape,
        "num_hidden_layers": n_layers,
        "layer_types": _layer_types(rng, n_layers),
        "sliding_window": int(rng.choice([5, 31, 33, 90])),
        "global_head_dim": 2 * int(rng.integers(4, 21)),
        "rope_parameters": _ropes(rng),
        "final_logit_softcapping": [None, 5.0, 30.0][int(rng.integers(3))],
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": shape["vocab_size"],
        "attention_k_eq_v": False,
    }
    if family == "gemma4_e2b" or (family in ("gemma4_any", "gemma4_moe") and rng.integers(2)):
        fields["hidden_size_per_layer_input"] = int(rng.integers(8, 33))
    # transformers 5.23 cannot compute layers that share without inputs of layers.
    has_inputs = fields["hidden_size_per_layer_input"] > 0
    if has_inputs and (family == "gemma4_e2b" or rng.integers(2)):
        fields["num_kv_shared_layers"] = int(rng.integers(1, n_layers - 1))
        fields["use_double_wide_mlp"] = bool(rng.integers(2))
    if family == "gemma4_e2b":
        fields["num_key_value_heads"] = 1
    else:
        n_heads, ratios = shape["num_attention_heads"], (1, 2, 3, 5)
        counts = [n_heads // ratio for ratio in ratios if n_heads % ratio == 0]
        fields["attention_k_eq_v"] = family == "gemma4_31b" or bool(rng.integers(2))
        fields["num_global_key_value_heads"] = int(rng.choice(counts))
    if family == "gemma4_moe":
        fields |= _experts(rng)
    if family == "gemma4_any":
        fields["attention_bias"] = bool(rng.integers(2))
    if family == "gemma4_e2b":
        fields["vocab_size_per_layer_input"] += int(rng.choice([0, 1, 29]))
    return "gemma4", fields


def _experts(rng: np.random.Generator) -> dict[str, Any]:
    """Return fields of mixtures of experts: some have few rows for many experts."""
    n_experts = int(rng.integers(4, 17))
    return {
        "enable_moe_block": True,
        "num_experts": n_experts,
        "top_k_experts": int(rng.integers(1, 5)),
        "moe_intermediate_size": int(rng.integers(7, 70)),
    }


def _layer_types(rng: np.random.Generator, n_layers: int) -> list[str]:
    """Both kinds come first, so that layers that share have one to share with."""
    kinds = ["sliding_attention", "full_attention"]
    rest = [str(rng.choice(kinds)) for _ in range(n_layers - 3)]
    return [*kinds, *rest, kinds[1]]


def _ropes(rng: np.random.Generator) -> dict[str, Any]:
    full: dict[str, Any] = {"rope_type": "default", "rope_theta": 2e4}
    if rng.integers(4):
        part = float(rng.choice([0.25, 0.5, 1.0]))
        full = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": part}
    theta = float(rng.choice([1e4, 500.0]))
    return {
        "full_attention": full,
        "sliding_attention": {"rope_type": "default", "rope_theta": theta},
    }

"""Random configurations of every architecture, for the tests beside transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
from family_shapes import (
    experts_fields,
    gemma_fields,
    gpt_oss_fields,
    granite_fields,
    lfm2_shape,
    olmo_fields,
)
from gemma4_shapes import GEMMA4, gemma4_shape
from llama_like_shapes import LLAMA_LIKE, llama_like_shape
from more_shapes import MORE, more_shape

__all__ = ["FAMILIES", "SEEDS", "random_shape"]

LFM2 = ("lfm2", "lfm2_moe")
FAMILIES = (
    *("llama2", "llama3", "mistral", "qwen2", "qwen3", "smollm2", "gpt2", "linear", "yarn"),
    *("qwen3_moe", "mixtral", "gemma2", "gemma3", "granite", "olmo2", "olmo3"),
    *LLAMA_LIKE,
    "gpt_oss",
    *GEMMA4,
    "granitemoehybrid",
    *LFM2,
)
SEEDS = (1, 2, 3)


def _rotary(rng: np.random.Generator) -> dict[str, Any]:
    n_kv_heads = int(rng.integers(1, 4))
    n_heads = n_kv_heads * int(rng.choice([1, 2, 3, 5]))
    return {
        "vocab_size": int(rng.integers(200, 400)),
        "hidden_size": n_heads * int(rng.integers(40 // n_heads + 1, 90 // n_heads + 1)),
        "intermediate_size": int(rng.integers(19, 150)),
        "num_hidden_layers": int(rng.integers(2, 5)),
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "head_dim": 2 * int(rng.integers(2, 17)),
        "tie_word_embeddings": bool(rng.integers(2)),
        "rms_norm_eps": float(rng.choice([1e-6, 1e-5])),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(rng.choice([1e4, 5e5]))},
    }


def _scaled(rope_type: str, **fields: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 1e4, **fields}}


def random_shape(family: str, seed: int) -> tuple[str, dict[str, Any]]:
    """The architecture of a family and a random configuration of it."""
    if family in MORE:
        rng = np.random.default_rng([*family.encode(), seed])
        return more_shape(family, rng, _rotary(rng))
    rng = np.random.default_rng([FAMILIES.index(family), seed])
    shape = _rotary(rng)
    if family in LLAMA_LIKE:
        return llama_like_shape(family, rng, shape)
    if family in GEMMA4:
        return gemma4_shape(family, rng, shape)
    if family in LFM2:
        return lfm2_shape(rng, family, shape)
    if family == "gpt2":
        n_head = int(rng.choice([1, 3, 5]))
        inner = [None, 77, 130][int(rng.integers(3))]
        activation = str(rng.choice(["gelu_new", "gelu"]))
        return "gpt2", {
            "vocab_size": shape["vocab_size"],
            "n_embd": n_head * int(rng.integers(5, 20)),
            "n_layer": shape["num_hidden_layers"],
            "n_head": n_head,
            "n_inner": inner,
            "activation_function": activation,
        }
    if family == "llama2":
        biases = {"attention_bias": bool(rng.integers(2)), "mlp_bias": bool(rng.integers(2))}
        return "llama", {**shape, **biases}
    if family == "llama3":
        fields = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        scaled = _scaled("llama3", **fields, original_max_position_embeddings=64)
        return "llama", {**shape, **scaled}
    if family == "linear":
        return "llama", {**shape, **_scaled("linear", factor=3.0)}
    if family == "yarn":
        scaled = _scaled("yarn", factor=4.0, original_max_position_embeddings=128)
        return "llama", {**shape, **scaled}
    if family == "smollm2":  # 9 heads on 3, tied
        heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72}
        del shape["head_dim"]
        return "llama", {**shape, **heads, "tie_word_embeddings": True}
    if family in ("qwen3_moe", "mixtral"):
        return family, {**shape, **experts_fields(rng, family, seed, sliding=seed == SEEDS[-1])}
    if family == "mistral":
        return "mistral", {**shape, "sliding_window": int(rng.integers(3, 60))}
    if family.startswith("granite"):
        return family, {**shape, **granite_fields(rng, family, shape)}
    if family.startswith("olmo"):
        return family, {**shape, **olmo_fields(rng, family, shape)}
    if family.startswith("gemma"):
        return family, {**shape, **gemma_fields(rng, family, shape["num_hidden_layers"])}
    if family == "gpt_oss":
        return family, {**shape, **gpt_oss_fields(rng, shape["num_hidden_layers"])}
    if seed == SEEDS[-1]:  # some layers see a window, the first see all
        windows = {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1}
        return family, {**shape, **windows}
    return family, shape

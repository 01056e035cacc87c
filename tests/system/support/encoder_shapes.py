"""Random configurations of encoders: every field that changes their arithmetic is varied."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["encoder_shape"]


def encoder_shape(family: str, seed: int) -> dict[str, Any]:
    """Return random fields of one of `checkpoints.ENCODERS`, for sequences of up to 512 tokens."""
    rng = np.random.default_rng([sum(map(ord, family)), seed])
    if family == "modernbert":
        return _modernbert(rng)
    if family == "embedding_gemma":
        return _embedding_gemma(rng)
    return _bert(rng, family)


def _bert(rng: np.random.Generator, family: str) -> dict[str, Any]:
    n_heads = int(rng.choice([1, 2, 3, 7]))
    fields: dict[str, Any] = {
        "vocab_size": int(rng.integers(200, 400)),
        "hidden_size": n_heads * int(rng.integers(40 // n_heads + 1, 90 // n_heads + 1)),
        "intermediate_size": int(rng.integers(19, 150)),
        "num_hidden_layers": int(rng.integers(1, 5)),
        "num_attention_heads": n_heads,
        "hidden_act": str(rng.choice(["gelu", "gelu_new", "gelu_pytorch_tanh"])),
        "layer_norm_eps": float(rng.choice([1e-12, 1e-5, 1e-3])),
        "type_vocab_size": int(rng.integers(1, 4)),
        "max_position_embeddings": 512,
    }
    if family != "bert":
        padding = int(rng.choice([0, 1, 5]))
        fields |= {"pad_token_id": padding, "max_position_embeddings": 513 + padding}
    return fields


def _modernbert(rng: np.random.Generator) -> dict[str, Any]:
    n_heads, n_layers = int(rng.choice([1, 2, 5])), int(rng.integers(2, 7))
    fields: dict[str, Any] = {
        "vocab_size": int(rng.integers(200, 400)),
        "hidden_size": n_heads * 2 * int(rng.integers(20 // n_heads + 1, 45 // n_heads + 1)),
        "intermediate_size": int(rng.integers(19, 150)),
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "hidden_activation": str(rng.choice(["gelu", "gelu_pytorch_tanh"])),
        "norm_eps": float(rng.choice([1e-5, 1e-3])),
        "local_attention": int(rng.choice([1, 9, 64, 129, 700])),
        "max_position_embeddings": 512,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default",
                "rope_theta": float(rng.choice([1.6e5, 3e3])),
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": float(rng.choice([1e4, 500.0])),
            },
        },
    }
    for name in ("attention_bias", "mlp_bias", "norm_bias"):
        fields[name] = bool(rng.integers(2))
    if rng.integers(2):
        kinds = ("full_attention", "sliding_attention")
        fields["layer_types"] = [
            "sliding_attention",
            *(str(rng.choice(kinds)) for _ in range(n_layers - 1)),
        ]
    return fields


def _embedding_gemma(rng: np.random.Generator) -> dict[str, Any]:
    n_kv_heads, n_layers = int(rng.integers(1, 3)), int(rng.integers(2, 5))
    n_heads = n_kv_heads * int(rng.integers(1, 4))
    kinds = ("full_attention", "sliding_attention")
    return {
        "vocab_size": int(rng.integers(200, 400)),
        "hidden_size": n_heads * int(rng.integers(40 // n_heads + 1, 90 // n_heads + 1)),
        "intermediate_size": int(rng.integers(19, 150)),
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "head_dim": 2 * int(rng.integers(2, 17)),
        "query_pre_attn_scalar": int(rng.integers(4, 40)),
        "attention_bias": bool(rng.integers(2)),
        "sliding_window": 2 * int(rng.choice([2, 16, 33, 200])),
        "layer_types": [
            "sliding_attention",
            *(str(rng.choice(kinds)) for _ in range(n_layers - 1)),
        ],
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default",
                "rope_theta": float(rng.choice([1e6, 2e4])),
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": float(rng.choice([1e4, 500.0])),
            },
        },
    }

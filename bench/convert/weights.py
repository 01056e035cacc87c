"""The number of weights that are multiplied with one token."""

from __future__ import annotations

from typing import Any

from bench.convert.shapes import SHAPES

__all__ = ["n_weights", "n_weights_of"]


def n_weights(shape: str) -> int:
    """Return the weights of a prompt token's matrices: all but embedding and head."""
    return n_weights_of(SHAPES[shape])


def n_weights_of(c: dict[str, Any]) -> int:
    """Return the same number for a config.json."""
    q = c["num_attention_heads"] * c["head_dim"]
    kv = c["num_key_value_heads"] * c["head_dim"]
    attention = c["hidden_size"] * (2 * q + 2 * kv)
    intermediate = c["intermediate_size"]
    if c["model_type"] == "qwen3_moe":
        intermediate = c["num_experts_per_tok"] * c["moe_intermediate_size"]
    mlp = 3 * c["hidden_size"] * intermediate
    return int(c["num_hidden_layers"] * (attention + mlp))

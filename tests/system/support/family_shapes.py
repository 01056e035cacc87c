"""Random fields of configurations, of architectures with blocks of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "experts_fields",
    "gemma_fields",
    "gpt_oss_fields",
    "granite_fields",
    "lfm2_shape",
    "olmo_fields",
]


def experts_fields(
    rng: np.random.Generator, family: str, seed: int, *, sliding: bool
) -> dict[str, Any]:
    """Return the fields of mixtures of experts. sliding: layers see a window."""
    n_experts = int(rng.integers(4, 17))
    fields: dict[str, Any] = {
        "num_local_experts": n_experts,
        "num_experts_per_tok": int(rng.integers(1, 5)),
        "sliding_window": int(rng.integers(3, 60)) if sliding else None,
    }
    if family == "mixtral":
        return fields
    return {
        **fields,
        "use_sliding_window": sliding,
        "attention_bias": bool(rng.integers(2)),
        "moe_intermediate_size": int(rng.integers(7, 70)),
        "norm_topk_prob": seed % 2 == 0,
        "decoder_sparse_step": 1 + seed % 2,
        "mlp_only_layers": [0] if seed == 2 else [],
    }


def _sliding(rng: np.random.Generator, n_layers: int) -> dict[str, Any]:
    """Windows shorter and longer than a KV block in some layers."""
    kinds = ["sliding_attention", "full_attention"]
    return {
        "sliding_window": int(rng.choice([5, 31, 33, 90])),
        "layer_types": [kinds[0], *(str(rng.choice(kinds)) for _ in range(n_layers - 1))],
    }


def gpt_oss_fields(rng: np.random.Generator, n_layers: int) -> dict[str, Any]:
    """Return fields of a gpt-oss whose bounds are within what its gates and ups are."""
    rope: dict[str, Any] = {
        "rope_type": "yarn",
        "rope_theta": float(rng.choice([1e4, 150000.0])),
        "factor": float(rng.choice([4.0, 32.0])),
        "original_max_position_embeddings": int(rng.choice([64, 100])),
        "truncate": bool(rng.integers(2)),
    }
    if rng.integers(4) == 0:
        rope = {"rope_type": "default", "rope_theta": 1e4}
    n_experts = int(rng.integers(4, 17))
    return {
        **_sliding(rng, n_layers),
        "rope_parameters": rope,
        "num_attention_heads": 2 * int(rng.integers(1, 5)),
        "num_key_value_heads": 2,
        "num_local_experts": n_experts,
        "num_experts_per_tok": int(rng.integers(1, 5)),
        "attention_bias": bool(rng.integers(4)),
        "swiglu_limit": float(rng.choice([0.5, 1.5, 7.0])),
        "swiglu_alpha": float(rng.choice([1.0, 1.702])),
    }


def granite_fields(rng: np.random.Generator, family: str, shape: dict[str, Any]) -> dict[str, Any]:
    fields = {
        "embedding_multiplier": float(rng.choice([1.0, 12.0])),
        "residual_multiplier": float(rng.choice([0.22, 1.0, 1.5])),
        "attention_multiplier": float(rng.choice([0.015625, 0.3, 1.0])),
        "logits_scaling": float(rng.choice([1.0, 8.0])),
        "attention_bias": bool(rng.integers(2)),
        "mlp_bias": bool(rng.integers(2)),
    }
    if family == "granitemoehybrid":
        del fields["mlp_bias"]
        fields["layer_types"] = ["attention"] * shape["num_hidden_layers"]
        fields["shared_intermediate_size"] = shape["intermediate_size"]
    return fields


def olmo_fields(rng: np.random.Generator, family: str, shape: dict[str, Any]) -> dict[str, Any]:
    fields = {
        "hidden_size": shape["num_attention_heads"] * shape["head_dim"],
        "pad_token_id": None,
        "attention_bias": bool(rng.integers(2)),
    }
    if family == "olmo2":
        return fields
    full = {"rope_type": "default", "rope_theta": 5e5}
    if rng.integers(2):
        full |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    plain = {"rope_type": "default", "rope_theta": 5e5}
    fields["rope_parameters"] = {"full_attention": full, "sliding_attention": plain}
    return {**fields, **_sliding(rng, shape["num_hidden_layers"])}


def gemma_fields(rng: np.random.Generator, family: str, n_layers: int) -> dict[str, Any]:
    fields = {
        **_sliding(rng, n_layers),
        "query_pre_attn_scalar": int(rng.integers(4, 40)),
        "attention_bias": bool(rng.integers(2)),
        "final_logit_softcapping": [None, 5.0, 30.0][int(rng.integers(3))],
    }
    if family == "gemma2":
        return {**fields, "attn_logit_softcapping": [None, 1.5, 50.0][int(rng.integers(3))]}
    full = {"rope_type": "default", "rope_theta": float(rng.choice([1e6, 2e4]))}
    if rng.integers(2):
        full |= {"rope_type": "linear", "factor": 8.0}
    sliding = {"rope_type": "default", "rope_theta": float(rng.choice([1e4, 500.0]))}
    return {**fields, "rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


def lfm2_shape(
    rng: np.random.Generator, family: str, shape: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the architecture of an LFM2 and a random configuration of it.

    shape: a random one of Llama's fields. Layers of both kinds, in any order.
    """
    n_layers = shape["num_hidden_layers"]
    more = rng.choice(["full_attention", "conv"], n_layers).tolist()
    kinds = ["full_attention", "conv", *more]
    fields: dict[str, Any] = {
        "norm_eps": shape.pop("rms_norm_eps"),
        "conv_L_cache": int(rng.integers(2, 6)),
        "layer_types": rng.permutation(kinds[:n_layers]).tolist(),
        "pad_token_id": None,
    }
    if family == "lfm2":
        adjusted = {
            "block_auto_adjust_ff_dim": bool(rng.integers(2)),
            "block_multiple_of": int(rng.integers(1, 9)),
            "block_ffn_dim_multiplier": float(rng.choice([1.0, 1.3])),
        }
        return family, {**shape, **fields, **adjusted}
    n_experts = int(rng.integers(4, 17))
    experts = {
        "num_experts": n_experts,
        "num_experts_per_tok": int(rng.integers(1, 5)),
        "moe_intermediate_size": int(rng.integers(7, 70)),
        "num_dense_layers": int(rng.integers(0, 2)),
        "use_expert_bias": bool(rng.integers(3)),
        "norm_topk_prob": bool(rng.integers(2)),
        "routed_scaling_factor": float(rng.choice([0.6, 1.0, 2.5])),
    }
    return family, {**shape, **fields, **experts}

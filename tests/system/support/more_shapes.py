"""Random configurations of families that are each one file of `loading/families`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["MORE", "more_shape"]

Shape = dict[str, Any]
_KINDS = ("sliding_attention", "full_attention")


def more_shape(family: str, rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    """Return the `model_type` of a family and a random configuration of it.

    shape: a random one of Llama's fields.
    """
    architecture, changed = MORE[family](rng, shape)
    return architecture, {**shape, **changed}


def _flag(rng: np.random.Generator) -> bool:
    return bool(rng.integers(2))


def _experts(rng: np.random.Generator) -> Shape:
    return {
        "num_experts": int(rng.integers(4, 17)),
        "num_experts_per_tok": int(rng.integers(1, 5)),
    }


def _partial(rng: np.random.Generator, shape: Shape) -> Shape:
    """Return fields of heads of which a part turns, perhaps all."""
    part = float(rng.choice([0.25, 0.5, 1.0]))
    rope = {**shape["rope_parameters"], "partial_rotary_factor": part}
    return {"head_dim": 8 * int(rng.integers(1, 5)), "rope_parameters": rope}


def _whole_heads(shape: Shape) -> Shape:
    """Return fields of a model whose heads are as wide as the residual stream."""
    return {"hidden_size": shape["num_attention_heads"] * shape["head_dim"]}


def _seed_oss(rng: np.random.Generator, _: Shape) -> tuple[str, Shape]:
    names = ("attention_bias", "attention_out_bias", "mlp_bias")
    return "seed_oss", {name: _flag(rng) for name in names}


def _olmoe(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    fields = {"norm_topk_prob": _flag(rng), "attention_bias": _flag(rng)}
    return "olmoe", {**_experts(rng), **_whole_heads(shape), **fields}


def _qwen2_moe(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    n_layers = shape["num_hidden_layers"]
    windows: Shape = {"use_sliding_window": _flag(rng), "sliding_window": int(rng.integers(3, 60))}
    windows["max_window_layers"] = int(rng.integers(1, 4))
    if windows["use_sliding_window"] and _flag(rng):
        windows["layer_types"] = rng.choice(_KINDS, n_layers).tolist()
    return "qwen2_moe", {
        **_experts(rng),
        **windows,
        **_whole_heads(shape),
        "moe_intermediate_size": int(rng.integers(7, 70)),
        "shared_expert_intermediate_size": int(rng.integers(7, 70)),
        "norm_topk_prob": _flag(rng),
        "qkv_bias": _flag(rng),
        "decoder_sparse_step": int(rng.integers(1, 3)),
        "mlp_only_layers": [0] if _flag(rng) else [],
    }


def _glm4(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    return "glm4", {**_partial(rng, shape), "attention_bias": _flag(rng)}


def _exaone4(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    n_layers = shape["num_hidden_layers"]
    if _flag(rng):
        return "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * n_layers}
    windows: Shape = {"sliding_window": int(rng.integers(3, 60))}
    if _flag(rng):
        windows["sliding_window_pattern"] = int(rng.integers(2, 5))
    else:
        windows["layer_types"] = rng.choice(_KINDS, n_layers).tolist()
    return "exaone4", windows


def _starcoder2(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    epsilon = shape.pop("rms_norm_eps")
    return "starcoder2", {
        "norm_epsilon": epsilon,
        "use_bias": _flag(rng),
        "sliding_window": [None, 21][int(rng.integers(2))],
        "hidden_act": str(rng.choice(["gelu_pytorch_tanh", "gelu"])),
    }


def _stablelm(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    epsilon = shape.pop("rms_norm_eps")
    partial = _partial(rng, shape)
    heads = _whole_heads({**shape, **partial})
    return "stablelm", {
        **partial,
        **heads,
        "layer_norm_eps": epsilon,
        "use_qkv_bias": _flag(rng),
    }


def _minimax_m2(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    experts = _experts(rng)
    experts["num_local_experts"] = experts.pop("num_experts")
    return "minimax_m2", {**_partial(rng, shape), **experts}


def _ernie4_5(rng: np.random.Generator, _: Shape) -> tuple[str, Shape]:
    return "ernie4_5", {"use_bias": _flag(rng)}


def _glm4_moe(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    n_layers = shape["num_hidden_layers"]
    return "glm4_moe", {
        **_partial(rng, shape),
        "n_routed_experts": int(rng.integers(4, 17)),
        "num_experts_per_tok": int(rng.integers(1, 5)),
        "moe_intermediate_size": int(rng.integers(7, 70)),
        "n_shared_experts": int(rng.integers(1, 4)),
        "first_k_dense_replace": int(rng.integers(0, n_layers)),
        "norm_topk_prob": _flag(rng),
        "routed_scaling_factor": float(rng.choice([0.6, 1.0, 2.5])),
        "use_qk_norm": _flag(rng),
        "attention_bias": _flag(rng),
    }


def _cohere2(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    epsilon = shape.pop("rms_norm_eps")
    windows: Shape = {"sliding_window": int(rng.integers(3, 60))}
    if _flag(rng):
        windows["layer_types"] = rng.choice(_KINDS, shape["num_hidden_layers"]).tolist()
    return "cohere2", {
        **_whole_heads(shape),
        **windows,
        "layer_norm_eps": epsilon,
        "logit_scale": float(rng.choice([0.0625, 0.25, 1.0])),
        "attention_bias": _flag(rng),
    }


def _apertus(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    rope = {
        "rope_type": "llama3",
        "rope_theta": float(rng.choice([1e4, 1.2e7])),
        "factor": float(rng.choice([2.0, 8.0])),
        "low_freq_factor": 1.0,
        "high_freq_factor": float(rng.choice([2.0, 4.0])),
        "original_max_position_embeddings": int(rng.choice([32, 64, 200])),
    }
    return "apertus", {
        "attention_bias": _flag(rng),
        "rope_parameters": rope if rng.integers(3) else shape["rope_parameters"],
    }


def _arcee(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    biases = {"attention_bias": _flag(rng), "mlp_bias": _flag(rng)}
    return "arcee", {**_whole_heads(shape), **biases}


def _ernie4_5_moe(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    n_layers = shape["num_hidden_layers"]
    return "ernie4_5_moe", {
        **_whole_heads(shape),
        "moe_num_experts": int(rng.integers(4, 17)),
        "moe_k": int(rng.integers(1, 5)),
        "moe_intermediate_size": int(rng.integers(7, 70)),
        "moe_num_shared_experts": int(rng.integers(0, 4)),
        "moe_layer_start_index": int(rng.integers(0, n_layers)),
        "moe_layer_end_index": [-1, n_layers - 1][int(rng.integers(2))],
        "moe_layer_interval": int(rng.integers(1, 3)),
    }


def _hunyuan(rng: np.random.Generator, shape: Shape) -> Shape:
    rope = shape["rope_parameters"]
    if _flag(rng):
        rope = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}
    return {
        "head_dim": 2 * int(rng.integers(2, 17)),
        "rope_parameters": rope,
        "attention_bias": _flag(rng),
    }


def _hunyuan_v1_dense(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    return "hunyuan_v1_dense", _hunyuan(rng, shape)


def _hunyuan_v1_moe(rng: np.random.Generator, shape: Shape) -> tuple[str, Shape]:
    experts = _experts(rng)
    experts["moe_topk"] = experts.pop("num_experts_per_tok")
    return "hunyuan_v1_moe", {**_hunyuan(rng, shape), **experts}


MORE: dict[str, Callable[[np.random.Generator, Shape], tuple[str, Shape]]] = {
    "seed_oss": _seed_oss,
    "olmoe": _olmoe,
    "qwen2_moe": _qwen2_moe,
    "glm4": _glm4,
    "exaone4": _exaone4,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "minimax_m2": _minimax_m2,
    "ernie4_5": _ernie4_5,
    "glm4_moe": _glm4_moe,
    "cohere2": _cohere2,
    "apertus": _apertus,
    "arcee": _arcee,
    "ernie4_5_moe": _ernie4_5_moe,
    "hunyuan_v1_dense": _hunyuan_v1_dense,
    "hunyuan_v1_moe": _hunyuan_v1_moe,
}

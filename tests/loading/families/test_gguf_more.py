"""Families that are each one file: a GGUF file is the same model as the directory it is of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import some_logits as logits
from gguf_more import write_more_gguf

from pybatcher.errors import ModelFormatError
from pybatcher.loading import open_model
from pybatcher.testing.checkpoints import make_checkpoint

_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3}
_HALF = {
    "head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
    },
}
_PLAIN = {"rope_type": "default", "rope_theta": 1e4}
_ERNIE = {
    "moe_num_experts": 6,
    "moe_k": 3,
    "moe_intermediate_size": 40,
    "moe_num_shared_experts": 2,
}
_ALPHA = {
    "head_dim": 16,
    "rope_parameters": {
        "rope_type": "dynamic",
        "rope_theta": 1e4,
        "alpha": 1000.0,
        "factor": 1.0,
    },
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("seed_oss", {"head_dim": 12}),
    ("seed_oss", {"attention_out_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("olmoe", _EXPERTS),
    (
        "qwen2_moe",
        {**_EXPERTS, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56},
    ),
    ("glm4", _HALF),
    ("glm4", {"head_dim": 16, "attention_bias": False, "tie_word_embeddings": True}),
    ("exaone4", {"sliding_window": 24, "sliding_window_pattern": 2}),
    ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    ("starcoder2", {}),
    ("starcoder2", {"use_bias": False, "tie_word_embeddings": True}),
    ("stablelm", {**_HALF, "hidden_size": 96}),
    ("stablelm", {"use_qkv_bias": True, "num_attention_heads": 3, "num_key_value_heads": 3}),
    ("minimax_m2", {**_HALF, "num_local_experts": 6, "num_experts_per_tok": 3}),
    ("ernie4_5", {"head_dim": 12}),
    (
        "glm4_moe",
        {
            **_HALF,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "routed_scaling_factor": 1.5,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    (
        "cohere2",
        {
            "sliding_window": 24,
            "layer_types": ["full_attention", *["sliding_attention"] * 2],
            "tie_word_embeddings": True,
            "logit_scale": 0.25,
        },
    ),
    ("ernie4_5", {"head_dim": 12, "use_bias": True}),
    ("apertus", {"head_dim": 12}),
    ("apertus", {"attention_bias": True, "tie_word_embeddings": True, "rope_parameters": _PLAIN}),
    ("arcee", {}),
    ("arcee", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("ernie4_5_moe", _ERNIE),
    ("ernie4_5_moe", {**_ERNIE, "moe_num_shared_experts": 0, "moe_layer_interval": 2}),
    ("hunyuan_v1_dense", {"head_dim": 16, "attention_bias": True}),
    ("hunyuan_v1_dense", _ALPHA),
    ("hunyuan_v1_moe", {**_ALPHA, "num_experts": 6, "moe_topk": 3}),
]


@pytest.mark.parametrize(("architecture", "changes"), VARIANTS)
def test_the_same_configuration_weights_and_logits(
    architecture: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    directory = make_checkpoint(tmp_path / "hf", architecture, tokenizer=False, **changes)
    path = write_more_gguf(directory, tmp_path / "model.gguf")
    known, loaded = open_model(directory), open_model(path)
    eps = float(np.float32(known.config.norm_eps))
    assert loaded.config.norm_eps == pytest.approx(eps, rel=1e-7)
    assert replace(loaded.config, norm_eps=eps) == replace(known.config, norm_eps=eps)
    assert loaded.tensors.keys() == known.tensors.keys()
    for name, expected in known.tensors.items():
        np.testing.assert_array_equal(loaded.tensors[name].array, expected.array, err_msg=name)
    np.testing.assert_array_equal(logits(path), logits(directory))


@pytest.mark.parametrize(
    ("architecture", "changes", "keys", "said"),
    [
        ("seed_oss", {}, {"attention__sliding_window": 9}, "attention.sliding_window is 9"),
        ("seed_oss", {}, {"expert_count": 4}, "expert_count is 4"),
        ("olmoe", _EXPERTS, {"expert_weights_norm": True}, "expert_weights_norm is True"),
        ("olmoe", _EXPERTS, {"rope__dimension_count": 4}, "rope.dimension_count is 4"),
        ("stablelm", {}, {"use_parallel_residual": True}, "use_parallel_residual is True"),
        ("ernie4_5", {}, {"rope__dimension_count": 4}, "rope.dimension_count is 4"),
        ("ernie4_5_moe", _ERNIE, {"expert_gating_func": 2}, "expert_gating_func is 2"),
        ("arcee", {}, {"expert_count": 4}, "expert_count is 4"),
        (
            "hunyuan_v1_moe",
            {**_ALPHA, "num_experts": 6, "moe_topk": 3},
            {"expert_shared_count": 2},
            "expert_shared_count is 2",
        ),
    ],
)
def test_what_no_layer_does_is_refused_by_name(
    architecture: str, changes: dict[str, Any], keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    directory = make_checkpoint(tmp_path / "hf", architecture, tokenizer=False, **changes)
    path = write_more_gguf(directory, tmp_path / "model.gguf", **keys)
    with pytest.raises(ModelFormatError, match=said):
        open_model(path)

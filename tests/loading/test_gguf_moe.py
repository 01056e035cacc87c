from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_files import write_gguf

from pybatcher.engine import Engine
from pybatcher.errors import ModelFormatError
from pybatcher.loading import open_model
from pybatcher.testing.checkpoints import make_checkpoint

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3_moe", {"mlp_only_layers": []}),
    ("mixtral", {"head_dim": 16}),
    ("gpt_oss", {"swiglu_limit": 7.0}),
]
PROMPT = list(range(5, 60))


def logits(path: Path, dtype: str) -> np.ndarray:
    engine = Engine.load(path, dtype=dtype, n_ctx=128)
    row = engine.prefill_chunk(engine.seq_new(), PROMPT, logits=True)
    engine.close()
    return np.asarray(row)


@pytest.mark.parametrize(("architecture", "changes"), VARIANTS)
def test_the_same_model_as_from_safetensors(
    architecture: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    directory = make_checkpoint(tmp_path / "hf", architecture, **changes)
    path = write_gguf(directory, tmp_path / "model.gguf")
    known, loaded = open_model(directory), open_model(path)
    same = {"architecture": architecture, "norm_eps": known.config.norm_eps}
    assert replace(loaded.config, **same) == known.config
    assert loaded.tensors.keys() == known.tensors.keys()
    for name, tensor in known.tensors.items():
        np.testing.assert_array_equal(loaded.tensors[name].array, tensor.array, err_msg=name)
    np.testing.assert_array_equal(logits(path, "f32"), logits(directory, "f32"))


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_K])
def test_blocks_of_experts(kind: Kind, tmp_path: Path) -> None:
    """Blocks are what their numbers are: read as blocks, or written plainly and read in f32."""
    wide = {"hidden_size": 256, "moe_intermediate_size": 256, "head_dim": 32, "vocab_size": 300}
    directory = make_checkpoint(tmp_path / "hf", "qwen3_moe", mlp_only_layers=[], **wide)

    def of_experts(name: str) -> Kind:
        return kind if "_exps" in name else Kind.F32

    path = write_gguf(directory, tmp_path / "model.gguf", of_experts)
    tensors = open_model(path).tensors
    dtype = {Kind.Q8_0: "int8", Kind.Q4_0: "int4", Kind.Q4_K: "q4_k"}[kind]
    for part in ("gate", "up", "down"):
        for expert in range(6):
            tensor = tensors[f"layers.2.experts.{expert}.{part}.weight"]
            assert (tensor.dtype, tensor.shape) == (dtype, (256, 256))
    if kind != Kind.Q4_K:  # whose bytes are random
        found, plain = logits(path, "f32"), logits(directory, "f32")
        assert np.linalg.norm(found - plain) < 0.5 * np.linalg.norm(plain)
    assert np.isfinite(logits(path, "f32")).all()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"expert_count": 0}, "expert_count is 0"),
        ({"expert_count": None}, "expert_count is missing"),
        ({"expert_count": 10**6}, "expert_count is 1000000"),
        ({"expert_count": 7}, r"found shape \[6, .*expected \[7, "),
        ({"expert_used_count": 7}, "expert_used_count is 7"),
        ({"expert_used_count": None}, "expert_used_count is missing"),
        ({"expert_feed_forward_length": 41}, r"found shape .*expected \[6, 41, 48\]"),
        ({"expert_shared_count": 1}, "expert_shared_count is 1"),
        ({"expert_gating_func": 2}, "expert_gating_func is 2"),
        ({"expert_weights_norm": False}, "expert_weights_norm is False"),
        ({"expert_weights_scale": 2.5}, "expert_weights_scale is 2.5"),
    ],
)
def test_what_is_refused(
    keys: dict[str, Any], said: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = make_checkpoint(tmp_path / "hf", "qwen3_moe", mlp_only_layers=[])
    changes = {f"qwen3moe.{key}": value for key, value in keys.items()}
    path = write_gguf(directory, tmp_path / "model.gguf", keys=changes)
    with pytest.raises(ModelFormatError, match=said):
        open_model(path)


def test_experts_of_other_architectures_are_refused(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "hf", "qwen3")
    path = write_gguf(directory, tmp_path / "model.gguf", keys={"qwen3.expert_count": 4})
    with pytest.raises(ModelFormatError, match=r"qwen3\.expert_count is 4"):
        open_model(path)

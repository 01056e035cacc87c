from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_files import write_gguf

from pybatcher.engine import Engine
from pybatcher.errors import ModelFormatError
from pybatcher.loading import open_model
from pybatcher.testing.checkpoints import make_checkpoint

GEMMA4: dict[str, Any] = {  # widths whose square roots are whole, as scales are rounded
    "hidden_size": 64,
    "hidden_size_per_layer_input": 16,
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 3,
    "moe_intermediate_size": 40,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3_moe", {"mlp_only_layers": []}),
    ("mixtral", {"head_dim": 16}),
    ("gpt_oss", {"swiglu_limit": 7.0}),
    ("gemma4", GEMMA4),
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
    same = {"architecture": known.config.architecture, "norm_eps": known.config.norm_eps}
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


# -- gemma4: experts beside an MLP --------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_K])
def test_blocks_of_gate_over_up(kind: Kind, tmp_path: Path) -> None:
    """Experts whose gate and up are one tensor are those of a file that has them apart."""
    wide = {**GEMMA4, "hidden_size": 256, "moe_intermediate_size": 256, "num_hidden_layers": 2}
    directory = make_checkpoint(tmp_path / "hf", "gemma4", **wide)
    whole = write_gguf(directory, tmp_path / "whole.gguf", lambda name: of_experts(kind, name))
    apart = apart_in(whole, tmp_path / "apart.gguf")
    known, loaded = open_model(whole).tensors, open_model(apart).tensors
    assert loaded.keys() == known.keys()
    for name, tensor in known.items():
        np.testing.assert_array_equal(loaded[name].array, tensor.array, err_msg=name)
    up = known["layers.1.experts.5.up.weight"]
    assert (up.dtype, up.shape) == ({Kind.Q8_0: "int8", Kind.Q4_K: "q4_k"}[kind], (256, 256))
    np.testing.assert_array_equal(logits(apart, "auto"), logits(whole, "auto"))


def of_experts(kind: Kind, name: str) -> Kind:
    return kind if "_exps" in name else Kind.F32


def apart_in(whole: Path, target: Path, *, keep: bool = False) -> Path:
    """Write a file again with gate and up of experts apart. keep: and together too."""
    reader = gguf.GGUFReader(whole)
    writer = gguf.GGUFWriter(target, "gemma4")
    for field in reader.fields.values():
        if field.name != "general.architecture" and not field.name.startswith("GGUF."):
            of_items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], of_items)
    for entry in reader.tensors:
        fused = entry.name.endswith("ffn_gate_up_exps.weight")
        if not fused or keep:
            writer.add_tensor(entry.name, entry.data, raw_dtype=entry.tensor_type)
        if fused:
            for part, half in zip(("gate", "up"), np.split(entry.data, 2, axis=1), strict=True):
                name = entry.name.replace("gate_up", part)
                writer.add_tensor(name, half.copy(), raw_dtype=entry.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"expert_count": None}, r"ffn_\w+.* has no place in the gemma4 architecture"),
        ({"expert_count": 5}, r"found shape \[6, .*expected \[5, "),
        ({"expert_used_count": 7}, "expert_used_count is 7; expected .* from 1 to 6"),
        ({"expert_feed_forward_length": None}, "expert_feed_forward_length is missing"),
        ({"expert_feed_forward_length": 41}, r"found shape \[6, 80, 64\]; expected \[6, 82, 64\]"),
        ({"expert_shared_count": 1}, "expert_shared_count is 1"),
        ({"expert_gating_func": 3}, "expert_gating_func is 3"),
    ],
)
def test_what_is_refused_of_gemma_4(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "hf", "gemma4", **GEMMA4)
    changes = {f"gemma4.{key}": value for key, value in keys.items()}
    path = write_gguf(directory, tmp_path / "model.gguf", keys=changes)
    with pytest.raises(ModelFormatError, match=said):
        open_model(path)


def test_gates_that_are_there_twice(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "hf", "gemma4", **GEMMA4)
    whole = write_gguf(directory, tmp_path / "whole.gguf")
    twice = apart_in(whole, tmp_path / "twice.gguf", keep=True)
    with pytest.raises(ModelFormatError, match=r"ffn_gate_exps\.weight' has no place"):
        open_model(twice)


@pytest.mark.parametrize("name", ["ffn_gate_inp.scale", "ffn_down_exps.scale", "pre_ffw_norm_2"])
def test_what_a_file_lacks(name: str, tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "hf", "gemma4", **GEMMA4)
    path = write_gguf(directory, tmp_path / "model.gguf")
    missing = f"blk.2.{name}".encode()
    path.write_bytes(path.read_bytes().replace(missing, missing[:-1] + b"x"))
    with pytest.raises(ModelFormatError, match=rf"tensor blk\.2\.{name}.* is missing"):
        open_model(path)

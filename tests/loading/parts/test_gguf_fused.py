"""Files whose q, k and v are one tensor are the models of the files that have three."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_files import write_gguf

from pybatcher.errors import ModelFormatError
from pybatcher.loading.gguf.model import open_gguf
from pybatcher.testing.checkpoints import make_checkpoint

SHAPE: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"mlp_only_layers": [], "moe_intermediate_size": 64, "head_dim": 32},
    "gpt_oss": {},
    "gemma3": {},
    "gemma4": {
        "num_kv_shared_layers": 0,
        "attention_k_eq_v": False,
        "global_head_dim": 32,
        "head_dim": 32,
        "hidden_size_per_layer_input": 32,
    },
    "granite": {},
    "olmo2": {},
    "qwen3_5": {
        "layer_types": ["linear_attention", "full_attention", "full_attention"],
        **{"linear_key_head_dim": 32, "linear_value_head_dim": 32},
    },
}


def fused(path: Path, target: Path, *, layers: tuple[int, ...]) -> Path:
    """Copy a file with q, k and v of some layers in one tensor, as the converter does it."""
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub_type)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in tensors.items():
        _, layer, part, *_ = (*name.split("."), "", "", "")
        names = [name.replace("attn_q.", f"attn_{part}.") for part in "qkv"]
        is_one = layer.isdecimal() and int(layer) in layers and names[2] in tensors
        if is_one and part == "attn_q":
            whole = np.concatenate([tensors[one].data for one in names])
            name = name.replace("attn_q.", "attn_qkv.")
            writer.add_tensor(name, whole, raw_dtype=tensor.tensor_type)
        elif not (is_one and part in ("attn_k", "attn_v")):
            writer.add_tensor(name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize("kind", [None, Kind.Q8_0])
@pytest.mark.parametrize("architecture", MODELS)
def test_one_tensor_of_three(architecture: str, kind: Kind | None, tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "hf", architecture, **{**SHAPE, **MODELS[architecture]})
    path = write_gguf(directory, tmp_path / "model.gguf", kind)
    one = fused(path, tmp_path / "fused.gguf", layers=(0, 2))
    expected, found = open_gguf(path), open_gguf(one)
    assert found.config == expected.config
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found.tensors[name].array, tensor.array, err_msg=name)
    names = {tensor.name for tensor in gguf.GGUFReader(one).tensors}
    assert "blk.2.attn_qkv.weight" in names
    assert "blk.2.attn_q.weight" not in names


def test_a_tensor_of_another_size(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "hf", "llama", **SHAPE)
    path = write_gguf(directory, tmp_path / "model.gguf")
    one = fused(path, tmp_path / "fused.gguf", layers=(1,))
    reader = gguf.GGUFReader(one, "r+")
    heads = reader.fields["llama.attention.head_count_kv"]
    heads.parts[heads.data[0]][0] = 1
    heads.parts[heads.data[0]].flush()
    del reader
    with pytest.raises(ModelFormatError, match=r"attn_k\.weight': found shape"):
        open_gguf(one)

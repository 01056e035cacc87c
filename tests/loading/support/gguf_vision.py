"""Write the GGUF file of a model that takes images, and the mmproj file with its vision tower.

The keys and names of tensors are those that llama.cpp's converter writes.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_files import quantise, write_gguf
from safetensors.torch import load_file, save_file

__all__ = ["write_mmproj", "write_text_gguf"]

_QWEN_PARTS = {
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "norm1": "ln1",
    "norm2": "ln2",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
}
_QWEN_NAMES = {
    "pos_embed": "v.position_embd",
    "patch_embed.proj": "v.patch_embd",
    "merger.norm": "v.post_ln",
    "merger.linear_fc1": "mm.0",
    "merger.linear_fc2": "mm.2",
}
_KEPT = ("v.patch_embd.weight", "v.position_embd.weight")
"""Tensors that the converter writes in f32, or the first of them in f16 files in f16."""


def write_text_gguf(directory: Path, target: Path, kind: Kind | None = None) -> Path:
    """Write the language model of a checkpoint with a tower, and its tokenizer if there is one."""
    config = json.loads((directory / "config.json").read_text())
    text = config["text_config"]
    deepstack = config["vision_config"].get("deepstack_visual_indexes", ())
    plain = target.with_suffix(".text")
    plain.mkdir()
    (plain / "config.json").write_text(json.dumps({**text, "n_deepstack_layers": len(deepstack)}))
    tensors = load_file(directory / "model.safetensors")
    of_text = {
        name.replace("model.language_model.", "model."): tensor
        for name, tensor in tensors.items()
        if not name.startswith("model.visual.")
    }
    save_file(of_text, plain / "model.safetensors")
    has_tokenizer = (directory / "tokenizer.json").is_file()
    for name in ("tokenizer.json", "tokenizer_config.json") if has_tokenizer else ():
        shutil.copy(directory / name, plain)
    write_gguf(plain, target, kind, tokenizer=has_tokenizer)
    shutil.rmtree(plain)
    return target


def write_mmproj(
    directory: Path,
    target: Path,
    kind: Kind = Kind.F32,
    *,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, torch.Tensor | None] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Path:
    """Write the vision tower of a Qwen3-VL or Qwen 3.5 checkpoint.

    kind: of the matrices. keys, tensors: to add or replace, by the file's names; None as a value
    removes one. renamed: new names of tensors.
    """
    config = json.loads((directory / "config.json").read_text())
    vision = config["vision_config"]
    flags = [i in vision.get("deepstack_visual_indexes", ()) for i in range(vision["depth"])]
    found: dict[str, Any] = {
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "qwen3vl_merger",
        "clip.use_gelu": True,
        "clip.vision.projection_dim": config["text_config"]["hidden_size"],
        "clip.vision.image_size": int(vision["num_position_embeddings"] ** 0.5)
        * vision["patch_size"],
        "clip.vision.patch_size": vision["patch_size"],
        "clip.vision.embedding_length": vision["hidden_size"],
        "clip.vision.feed_forward_length": vision["intermediate_size"],
        "clip.vision.block_count": vision["depth"],
        "clip.vision.attention.head_count": vision["num_heads"],
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
        "clip.vision.spatial_merge_size": vision["spatial_merge_size"],
        "clip.vision.is_deepstack_layers": flags,
        **(keys or {}),
    }
    writer = gguf.GGUFWriter(target, found.pop("general.architecture", "clip"))
    for key, value in found.items():
        _add_key(writer, key, value)
    named = dict(_tensors(load_file(directory / "model.safetensors"), flags)) | {**(tensors or {})}
    for name, tensor in named.items():
        if tensor is None:
            continue
        name = (renamed or {}).get(name, name)
        own = kind
        if tensor.ndim < 2 or name.startswith(_KEPT):
            is_patch = tensor.ndim > 2
            own = Kind.F16 if kind == Kind.F16 and is_patch else Kind.F32
            tensor = tensor.half() if own == Kind.F16 else tensor.float()
        elif kind == Kind.F16:
            tensor = tensor.half()
        writer.add_tensor(name, quantise(tensor.contiguous(), own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _tensors(
    tensors: Mapping[str, torch.Tensor], deepstack: list[bool]
) -> Iterator[tuple[str, torch.Tensor]]:
    layers = [i for i, has_deepstack in enumerate(deepstack) if has_deepstack]
    for name, tensor in tensors.items():
        if not name.startswith("model.visual."):
            continue
        stem, _, kind = name.removeprefix("model.visual.").rpartition(".")
        block = re.fullmatch(r"blocks\.(\d+)\.(.*)", stem)
        merger = re.fullmatch(r"deepstack_merger_list\.(\d+)\.(?:linear_)?(.*)", stem)
        if block is not None:
            yield f"v.blk.{block[1]}.{_QWEN_PARTS[block[2]]}.{kind}", tensor
        elif merger is not None:
            yield f"v.deepstack.{layers[int(merger[1])]}.{merger[2]}.{kind}", tensor
        elif tensor.ndim == 5:
            yield "v.patch_embd.weight", tensor[:, :, 0]
            yield "v.patch_embd.weight.1", tensor[:, :, 1]
        else:
            yield f"{_QWEN_NAMES[stem]}.{kind}", tensor


def _add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            pass
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)

"""Checkpoints of gpt-oss for tests: experts apart as llama.cpp has them, and in MXFP4."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

__all__ = ["gpt_oss_matrices", "hf_parts", "write_dequantised", "write_mxfp4"]


def gpt_oss_matrices(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors with gate, up and down as (experts, outputs, inputs), each by its name.

    Sinks get a name that ends in "weight".
    """
    made = {}
    for name, tensor in tensors.items():
        if name.endswith(".sinks"):
            made[f"{name}.weight"] = tensor
            continue
        before, _, part = name.partition(".experts.")
        kind = "bias" if part.endswith("_bias") else "weight"
        matrix = tensor.swapaxes(1, 2) if part and kind == "weight" else tensor
        if part.startswith("gate_up_proj"):
            made[f"{before}.experts.gate_proj.{kind}"] = matrix[:, 0::2].contiguous()
            made[f"{before}.experts.up_proj.{kind}"] = matrix[:, 1::2].contiguous()
        elif part.startswith("down_proj"):
            made[f"{before}.experts.down_proj.{kind}"] = matrix.contiguous()
        else:
            made[name] = tensor
    return made


def hf_parts(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return (..., groups, 16) codes and (..., groups) scales of rows of GGUF's MXFP4 blocks."""
    groups = blocks.reshape(*blocks.shape[:-1], -1, 17)
    codes = np.concatenate([groups[..., 1:] & 15, groups[..., 1:] >> 4], axis=-1)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), np.ascontiguousarray(groups[..., 0])


def _parts_of_experts(
    tensors: dict[str, torch.Tensor],
) -> tuple[dict[str, torch.Tensor], dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """Return the other tensors, and (blocks, scales) of those of experts' matrices."""
    others, parts = {}, {}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            others[name] = tensor
            continue
        rows = tensor.swapaxes(1, 2).float().contiguous().numpy()
        codes, scales = hf_parts(gguf.quants.quantize(rows, Kind.MXFP4))
        parts[name] = (torch.from_numpy(codes), torch.from_numpy(scales))
    return others, parts


def write_mxfp4(directory: Path, target: Path) -> Path:
    """Write a gpt_oss checkpoint with its experts in MXFP4, as published ones are."""
    shutil.copytree(directory, target)
    others, parts = _parts_of_experts(load_file(directory / "model.safetensors"))
    for name, (blocks, scales) in parts.items():
        others |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(others, target / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
        "quant_method": "mxfp4",
    }
    (target / "config.json").write_text(json.dumps(config))
    return target


def write_dequantised(directory: Path, target: Path) -> Path:
    """Write what `write_mxfp4` writes, dequantised to f32 by transformers."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    shutil.copytree(directory, target)
    tensors, parts = _parts_of_experts(load_file(directory / "model.safetensors"))
    for name, (blocks, scales) in parts.items():
        tensors[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(tensors, target / "model.safetensors")
    return target

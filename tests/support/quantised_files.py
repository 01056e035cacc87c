"""Checkpoints of quantised weights: each format written from its description, with its numbers.

Every function returns the tensors of one module by the last part of their names, and the values
that they stand for, (outputs, inputs) in f32, computed element by element from what was packed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.tensors import Tensor
from pybatcher.loading.safetensors.quantised import StoredWeight, read_scheme, with_matrices

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Parts = dict[str, torch.Tensor]
SIZE = 0.02  # of scales
LINEAR = ("self_attn", "mlp")


@dataclass
class Numbers:
    """Random whole numbers of a module, from 0 to 2**bits - 1, with scales and zero points."""

    q: Ints  # (outputs, inputs)
    zeros: Ints  # (outputs, groups)
    scales: torch.Tensor  # (outputs, groups)
    group_of: Ints  # (inputs)

    def values(self) -> Floats:
        scales = self.scales.float().numpy()
        differences = (self.q - self.zeros[:, self.group_of]).astype(np.float32)
        return scales[:, self.group_of] * differences


def random_numbers(
    rng: np.random.Generator,
    shape: tuple[int, int],
    group: int,
    *,
    bits: int = 4,
    symmetric: bool,
    ordered: bool | str = False,
    dtype: torch.dtype = torch.float16,
) -> Numbers:
    """group: inputs that share a scale; -1: all. ordered: groups are spread over the inputs.

    By default in another way for each module; "equally" as real checkpoints have them, whose
    modules of one input share an order; "unevenly" so that groups have any number of inputs.
    """
    n_out, n_in = shape
    size = n_in if group < 0 else group
    n_groups = -(-n_in // size)
    group_of = np.arange(n_in) // size
    if ordered == "unevenly":
        group_of = rng.integers(0, n_groups, n_in)
    elif ordered:
        source = np.random.default_rng(n_in) if ordered == "equally" else rng
        group_of = source.permutation(group_of)
    zeros = 2 ** (bits - 1) + rng.integers(-3, 4, (n_out, n_groups))
    if symmetric:
        zeros = np.full_like(zeros, 2 ** (bits - 1))
    size_of_scale = SIZE * 16 / 2**bits
    scales = torch.from_numpy(rng.uniform(0.2, 1, (n_out, n_groups)) * size_of_scale).to(dtype)
    return Numbers(rng.integers(0, 2**bits, shape), zeros, scales, group_of)


def packed(numbers: Ints, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Pack the last axis into int32: number `order[i]` of a word's outputs lies i-th from below."""
    per_word = 32 // bits
    order = order or tuple(range(per_word))
    missing = -numbers.shape[-1] % per_word
    padded = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, missing)])
    words = padded.reshape(*numbers.shape[:-1], -1, per_word)
    total = sum(words[..., taken] << (bits * place) for place, taken in enumerate(order))
    return torch.from_numpy(np.asarray(total).astype(np.uint32).view(np.int32))


def gptq(numbers: Numbers, bits: int = 4, *, v2: bool = False, g_idx: bool = True) -> Parts:
    stored_zeros = numbers.zeros - (0 if v2 else 1)
    parts = {
        "qweight": packed(numbers.q, bits).T.contiguous(),
        "scales": numbers.scales.T.contiguous(),
        "qzeros": packed(stored_zeros.T, bits),
    }
    if g_idx:
        parts["g_idx"] = torch.from_numpy(numbers.group_of.astype(np.int32))
    return parts


def awq(numbers: Numbers) -> Parts:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        "qweight": packed(numbers.q.T, 4, order),
        "scales": numbers.scales.T.contiguous(),
        "qzeros": packed(numbers.zeros.T, 4, order),
    }


def pack_quantized(numbers: Numbers, bits: int = 4, *, symmetric: bool, ordered: bool) -> Parts:
    parts = {
        "weight_packed": packed(numbers.q, bits),
        "weight_scale": numbers.scales,
        "weight_shape": torch.tensor(numbers.q.shape),
    }
    if not symmetric:
        parts["weight_zero_point"] = packed(numbers.zeros.T, bits).T.contiguous()
    if ordered:
        parts["weight_g_idx"] = torch.from_numpy(numbers.group_of.astype(np.int32))
    return parts


def int_quantized(numbers: Numbers, *, symmetric: bool) -> Parts:
    parts = {
        "weight": torch.from_numpy((numbers.q - 128).astype(np.int8)),
        "weight_scale": numbers.scales,
    }
    if not symmetric:
        parts["weight_zero_point"] = torch.from_numpy((numbers.zeros - 128).astype(np.int8))
    return parts


def float8(
    rng: np.random.Generator,
    shape: tuple[int, int],
    scale_shape: tuple[int, ...],
    name: str,
    dtype: torch.dtype = torch.float32,
) -> tuple[Parts, Floats]:
    """Blocks are as many as `scale_shape` says, of 128 where it has two sizes greater than 1."""
    numbers = torch.from_numpy(rng.standard_normal(shape) * 100).to(torch.float8_e4m3fn)
    scales = torch.tensor(rng.uniform(0.2, 1, scale_shape) * SIZE / 50).to(dtype)
    wide = scales.float()
    if wide.ndim == 2:
        height = -(-shape[0] // wide.shape[0]) if wide.shape[1] == 1 else 128
        width = shape[1] if wide.shape[1] == 1 else 128
        wide = wide.repeat_interleave(height, 0).repeat_interleave(width, 1)
        wide = wide[: shape[0], : shape[1]]
    elif wide.numel() > 1:
        wide = wide[:, None]
    return {"weight": numbers, name: scales}, (numbers.float() * wide).numpy()


Make = Callable[[np.random.Generator, tuple[int, int]], tuple[Parts, Floats]]


def write_quantised(
    directory: Path, target: Path, config: dict[str, Any], make: Make, *, head: bool = False
) -> Path:
    """Replace the linear modules of a checkpoint by random ones that `make` makes.

    target: gets "quantised" and "plain", the same numbers in f32. head: of the head too.
    """
    rng = np.random.default_rng(7)
    quantised, plain = {}, {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        is_linear = any(part in LINEAR for part in name.split(".")) or (head and "lm_head" in name)
        if tensor.ndim != 2 or not is_linear:
            quantised[name] = plain[name] = tensor
            continue
        parts, values = make(rng, (int(tensor.shape[0]), int(tensor.shape[1])))
        module = name.removesuffix(".weight")
        quantised |= {f"{module}.{part}": value.contiguous() for part, value in parts.items()}
        plain[name] = torch.from_numpy(values)
    for kind, tensors in (("quantised", quantised), ("plain", plain)):
        shutil.copytree(directory, target / kind)
        save_file(tensors, target / kind / "model.safetensors")
    fields = json.loads((directory / "config.json").read_text())
    fields["quantization_config"] = config
    (target / "quantised" / "config.json").write_text(json.dumps(fields))
    return target


def module(parts: Parts, name: str = "m") -> dict[str, Tensor]:
    """Return the tensors of one module as a mapped file has them."""
    kinds = {
        torch.float32: ("f32", torch.float32),
        torch.float16: ("f16", torch.float16),
        torch.bfloat16: ("bf16", torch.uint16),
        torch.int64: ("I64", torch.int64),
        torch.int32: ("I32", torch.int32),
        torch.int8: ("I8", torch.int8),
        torch.float8_e4m3fn: ("F8_E4M3", torch.uint8),
        torch.float8_e8m0fnu: ("F8_E8M0", torch.uint8),
    }
    made = {}
    for part, value in parts.items():
        dtype, view = kinds[value.dtype]
        array = value.contiguous().view(view).numpy()
        made[f"{name}.{part}"] = Tensor(array, dtype, f"file: tensor '{name}.{part}'")
    return made


def read_matrix(config: dict[str, Any], parts: Parts) -> StoredWeight:
    """Return the matrix of a module in a checkpoint with this quantization_config."""
    scheme = read_scheme(Fields({"quantization_config": config}, "config.json"))
    assert scheme is not None
    stored = with_matrices(module(parts), scheme, "a checkpoint")["m.weight"].stored
    assert stored is not None
    return stored

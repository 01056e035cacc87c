"""Models whose matrices are in blocks, as GGUF files and quantised checkpoints have them.

Made without the `gguf` package, which machines with a GPU may lack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pybatcher import _core
from pybatcher.loading import LoadedModel
from pybatcher.loading.checkpoints.rounding import to_bf16
from pybatcher.loading.checkpoints.tensors import Tensor, as_f32

_GROUP = 32
_IQ4_NL_NUMBERS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
_MXFP4_SIZES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
Bytes = NDArray[np.uint8]


def in_blocks(model: LoadedModel, dtype_of: Callable[[str], str]) -> LoadedModel:
    """Replace each matrix by blocks with numbers near to its own; dtype_of: from its name."""
    tensors = {
        name: tensor if tensor.array.ndim == 1 else _as(name, tensor, dtype_of(name))
        for name, tensor in model.tensors.items()
    }
    return replace(model, tensors=tensors, dtype=dtype_of("token_embedding"))


def _as(name: str, tensor: Tensor, dtype: str) -> Tensor:
    values = as_f32(tensor)
    array: NDArray[Any]
    if dtype == "f32":
        array = values
    elif dtype == "bf16":
        array = to_bf16(values)
    elif dtype in ("q4_k", "q5_k", "q6_k"):
        array = _core.quantise(name, (values, "f32"), dtype, 1)
    else:
        groups = values.reshape(len(values), -1, _GROUP)
        array = _GROUPS[dtype](groups).reshape(len(values), -1)
    return Tensor(array, dtype, tensor.source)


def _with_scales(scales: NDArray[np.float32], *rest: Bytes) -> Bytes:
    """scales: (rows, groups, 1). Returns (rows, groups, bytes)."""
    return np.concatenate([scales.astype(np.float16).view(np.uint8), *rest], axis=2)


def _pairs(codes: NDArray[Any]) -> Bytes:
    codes = codes.astype(np.uint8)
    return codes[..., :16] | codes[..., 16:] << np.uint8(4)


def _int8(x: NDArray[np.float32]) -> Bytes:
    scales = np.abs(x).max(axis=2, keepdims=True) / 127
    return _with_scales(scales, np.rint(x / scales).clip(-127, 127).astype(np.int8).view(np.uint8))


def _int4(x: NDArray[np.float32]) -> Bytes:
    scales = np.abs(x).max(axis=2, keepdims=True) / 7
    return _with_scales(scales, _pairs(np.rint(x / scales).clip(-8, 7) + 8))


def _int4_zp(x: NDArray[np.float32]) -> Bytes:
    low = x.min(axis=2, keepdims=True)
    scales = (x.max(axis=2, keepdims=True) - low) / 15
    zeros = np.rint(-low / scales).clip(0, 15)
    codes = np.rint(x / scales + zeros).clip(0, 15)
    zero_bytes = np.concatenate([zeros, np.zeros_like(zeros)], axis=2).astype(np.uint8)
    return _with_scales(scales, zero_bytes, _pairs(codes))


def _q5_0(x: NDArray[np.float32]) -> Bytes:
    scales = np.abs(x).max(axis=2, keepdims=True) / 15
    codes = (np.rint(x / scales).clip(-16, 15) + 16).astype(np.uint8)
    fifth_bits = np.packbits(codes >> 4, axis=2, bitorder="little")
    return _with_scales(scales, fifth_bits, _pairs(codes & 15))


def _iq4_nl(x: NDArray[np.float32]) -> Bytes:
    scales = np.abs(x).max(axis=2, keepdims=True) / 127
    codes = np.abs((x / scales)[..., None] - _IQ4_NL_NUMBERS).argmin(axis=-1)
    return _with_scales(scales, _pairs(codes))


def _mxfp4(x: NDArray[np.float32]) -> Bytes:
    exponents = np.floor(np.log2(np.abs(x).max(axis=2, keepdims=True))) - 2
    sizes = np.abs(x) / np.exp2(exponents)
    codes = np.abs(sizes[..., None] - _MXFP4_SIZES).argmin(axis=-1) + 8 * (x < 0)
    return np.concatenate([(exponents + 127).astype(np.uint8), _pairs(codes)], axis=2)


_GROUPS: dict[str, Callable[[NDArray[np.float32]], Bytes]] = {
    "int8": _int8,
    "int4": _int4,
    "int4_zp": _int4_zp,
    "mxfp4": _mxfp4,
    "q5_0": _q5_0,
    "iq4_nl": _iq4_nl,
}

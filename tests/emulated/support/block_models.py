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


def _with_min(x: NDArray[np.float32], n_bits: int) -> tuple[Bytes, Bytes]:
    """Return scales and minimums, (rows, groups, 4), and codes."""
    low = x.min(axis=2, keepdims=True)
    scales = (x.max(axis=2, keepdims=True) - low) / (2**n_bits - 1)
    codes = np.rint((x - low) / scales).clip(0, 2**n_bits - 1).astype(np.uint8)
    factors = np.concatenate([scales, low], axis=2).astype(np.float16).view(np.uint8)
    return factors, codes


def _q4_1(x: NDArray[np.float32]) -> Bytes:
    factors, codes = _with_min(x, 4)
    return np.concatenate([factors, _pairs(codes)], axis=2)


def _q5_1(x: NDArray[np.float32]) -> Bytes:
    factors, codes = _with_min(x, 5)
    fifth_bits = np.packbits(codes >> 4, axis=2, bitorder="little")
    return np.concatenate([factors, fifth_bits, _pairs(codes & 15)], axis=2)


def _supers(x: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    """Return the groups of n elements of super-blocks: (rows, blocks, 256 / n, n)."""
    return x.reshape(len(x), -1, 256 // n, n)


def _whole(scales: NDArray[np.float32], most: int) -> tuple[Bytes, Bytes, NDArray[np.float32]]:
    """Return d in bytes, scales as whole numbers of at most `most`, and what they stand for."""
    d = (scales.max(axis=2, keepdims=True) / most).astype(np.float16)
    wide = d.astype(np.float32)
    whole = np.rint(scales / wide).clip(1, most).astype(np.uint8)
    return d.view(np.uint8), whole, (wide * whole)[..., None]


def _two_bits(codes: Bytes) -> Bytes:
    """Return codes of 2 bits of super-blocks, (rows, blocks, 16, 16), as GGUF packs them."""
    halves = codes.reshape(*codes.shape[:2], 2, 4, 32)
    packed = halves[:, :, :, 0].copy()
    for i in range(1, 4):
        packed |= halves[:, :, :, i] << np.uint8(2 * i)
    return packed.reshape(*codes.shape[:2], 64)


def _iq4_xs(x: NDArray[np.float32]) -> Bytes:
    groups = _supers(x, 32)
    d, whole, scales = _whole(np.abs(groups).max(axis=3) / 127, 31)
    codes = np.abs((groups / scales)[..., None] - _IQ4_NL_NUMBERS).argmin(axis=-1)
    stored = (whole + 32).astype(np.uint16)
    high = (stored >> 4 << (2 * np.arange(8, dtype=np.uint16))).sum(axis=2, dtype=np.uint16)
    low = (stored & 15).astype(np.uint8)
    return np.concatenate(
        [
            d,
            high[..., None].view(np.uint8),
            low[..., ::2] | low[..., 1::2] << np.uint8(4),
            _pairs(codes).reshape(*d.shape[:2], 128),
        ],
        axis=2,
    )


def _q2_k(x: NDArray[np.float32]) -> Bytes:
    groups = _supers(x, 16)
    low = np.minimum(groups.min(axis=3), 0)
    d, whole, scales = _whole((groups.max(axis=3) - low) / 3, 15)
    d_min, whole_min, mins = _whole(-low, 15)
    codes = np.rint((groups + mins) / scales).clip(0, 3).astype(np.uint8)
    return np.concatenate([whole | whole_min << np.uint8(4), _two_bits(codes), d, d_min], axis=2)


def _q3_k(x: NDArray[np.float32]) -> Bytes:
    groups = _supers(x, 16)
    d, whole, scales = _whole(np.abs(groups).max(axis=3) / 3.5, 31)
    codes = (np.rint(groups / scales).clip(-4, 3) + 4).astype(np.uint8)
    eight = (codes >> 2).reshape(*codes.shape[:2], 8, 32)
    high = np.packbits(eight, axis=2, bitorder="little").reshape(*codes.shape[:2], 32)
    stored = whole + np.uint8(32)
    low = (stored & 15)[..., :8] | (stored & 15)[..., 8:] << np.uint8(4)
    four = (stored >> 4).reshape(*stored.shape[:2], 4, 4)
    upper = (four << (2 * np.arange(4, dtype=np.uint8))[:, None]).sum(axis=2, dtype=np.uint8)
    return np.concatenate([high, _two_bits(codes & 3), low, upper, d], axis=2)


_GROUPS: dict[str, Callable[[NDArray[np.float32]], Bytes]] = {
    "int8": _int8,
    "int4": _int4,
    "int4_zp": _int4_zp,
    "mxfp4": _mxfp4,
    "q5_0": _q5_0,
    "iq4_nl": _iq4_nl,
    "q4_1": _q4_1,
    "q5_1": _q5_1,
    "iq4_xs": _iq4_xs,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
}

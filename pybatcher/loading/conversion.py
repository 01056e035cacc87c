"""From the types of a checkpoint's weights to those that an engine of one dtype takes.

Plain numbers (f32, f16, bf16) and blocks of the engine's own dtype go as they are. All other
blocks are made into numbers here, by the reference implementation in the `gguf` package but for
the two kinds that every installation must know, and become weights of the engine's dtype there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFormatError
from .blocks import BLOCKS, block_name
from .tensors import Tensor

__all__ = ["check_conversion", "convert", "converted"]

_CHUNK = 2**22  # elements converted at a time
_WHOLE_IN_INT8 = ("int4", "Q5_0", "IQ4_NL")
"""Kinds of 32 elements that are one f16 scale, in the first two bytes, times int8 numbers."""


def converted(tensors: Mapping[str, Tensor], dtype: str, origin: str) -> dict[str, Tensor]:
    """All tensors of `origin` as an engine of `dtype` takes them: see the two below."""
    check_conversion(tensors, dtype, origin)
    return {name: convert(tensor, dtype) for name, tensor in tensors.items()}


def check_conversion(tensors: Mapping[str, Tensor], dtype: str, origin: str) -> None:
    """Whether `convert` can do it, and one warning if something is lost on the way.

    Raises ModelFormatError where the `gguf` package is needed and is not there.
    """
    lost: dict[str, int] = {}
    for tensor in tensors.values():
        if tensor.dtype not in BLOCKS or _as_it_is(tensor, dtype):
            continue
        if tensor.dtype not in _OWN:
            _reference(tensor.dtype, origin)
        exact = dtype == "f32" or (dtype == "int8" and tensor.dtype in _WHOLE_IN_INT8)
        if tensor.array.ndim == 2 and not exact:
            name = block_name(tensor.dtype)
            lost[name] = lost.get(name, 0) + 1
    if lost:
        counts = " and ".join(f"{count} of {name}" for name, count in sorted(lost.items()))
        advice = "" if dtype == "bf16" else "; dtype='bf16' would keep more of them"
        warnings.warn(
            f"{origin}: matrices are rounded to {dtype}, the one dtype of the engine: {counts}"
            f"{advice}",
            stacklevel=3,
        )


def convert(tensor: Tensor, dtype: str) -> Tensor:
    """The tensor as an engine of `dtype` takes it, with as much of its values as that can hold.

    Blocks of the engine's own kind and plain numbers are not copied. Other blocks
    become f32; bf16, rounded to nearest even, for a bf16 engine; int8 blocks for an
    int8 engine where that loses nothing.
    """
    if tensor.dtype not in BLOCKS or _as_it_is(tensor, dtype):
        return tensor
    if tensor.array.ndim == 2 and dtype == "int8" and tensor.dtype in _WHOLE_IN_INT8:
        return Tensor(_chunked(tensor, _to_int8, 34, np.uint8), "int8", tensor.source)
    if tensor.array.ndim == 2 and dtype == "bf16":
        return Tensor(_chunked(tensor, _to_bf16, None, np.uint16), "bf16", tensor.source)
    return Tensor(_chunked(tensor, _to_f32, None, np.float32), "f32", tensor.source)


def _as_it_is(tensor: Tensor, dtype: str) -> bool:
    return tensor.dtype == dtype and tensor.array.ndim == 2


def _chunked(
    tensor: Tensor,
    function: Callable[[NDArray[np.uint8], str], NDArray[Any]],
    bytes_per_group: int | None,
    dtype: Any,
) -> NDArray[Any]:
    """`function` over some rows at a time, so that what it needs on the way stays small."""
    rows = tensor.array.reshape(-1, tensor.array.shape[-1])
    n_columns = tensor.shape[-1]
    width = n_columns if bytes_per_group is None else n_columns // 32 * bytes_per_group
    out = np.empty((len(rows), width), dtype)
    for part in _parts(len(rows), n_columns):
        with np.errstate(all="ignore"):  # the engine refuses what is not finite, by name
            out[part] = function(rows[part], tensor.dtype)
    return out.reshape(*tensor.array.shape[:-1], width)


def _parts(n_rows: int, n_columns: int) -> Iterator[slice]:
    step = max(1, _CHUNK // n_columns)
    for first in range(0, n_rows, step):
        yield slice(first, first + step)


def _to_f32(rows: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    dequantise = _OWN.get(kind) or _reference(kind, "")
    return dequantise(rows)


def _to_bf16(rows: NDArray[np.uint8], kind: str) -> NDArray[np.uint16]:
    bits = _to_f32(rows, kind).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    not_a_number = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(not_a_number, (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _to_int8(rows: NDArray[np.uint8], kind: str) -> NDArray[np.uint8]:
    """The same scales beside the numbers that they multiply: what 1.0 for a scale gives."""
    blocks = rows.reshape(len(rows), -1, BLOCKS[kind].n_bytes).copy()
    out = np.empty((*blocks.shape[:2], 34), np.uint8)
    out[..., :2] = blocks[..., :2]
    blocks[..., :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    numbers = _to_f32(blocks.reshape(rows.shape), kind).astype(np.int8)
    out[..., 2:] = numbers.reshape(*blocks.shape[:2], 32).view(np.uint8)
    return out.reshape(len(rows), -1)


def _dequantise_int8(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = rows.reshape(len(rows), -1, 34)
    scales = blocks[..., :2].copy().view("<f2").astype(np.float32)
    return (blocks[..., 2:].view(np.int8) * scales).reshape(len(rows), -1)


def _dequantise_int4(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = rows.reshape(len(rows), -1, 18)
    scales = blocks[..., :2].copy().view("<f2").astype(np.float32)
    pairs = blocks[..., 2:]
    numbers = np.concatenate([pairs & 15, pairs >> 4], axis=-1).view(np.int8) - np.int8(8)
    return (numbers * scales).reshape(len(rows), -1)


_Dequantise = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
_OWN: dict[str, _Dequantise] = {"int8": _dequantise_int8, "int4": _dequantise_int4}


def _reference(kind: str, origin: str) -> _Dequantise:
    """The dequantisation of the `gguf` package, which is imported where it is needed only."""
    try:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        number = GGMLQuantizationType[kind]
        dequantize(np.zeros((1, BLOCKS[kind].n_bytes), np.uint8), number)
    except (ImportError, KeyError, NotImplementedError) as error:
        raise ModelFormatError(
            f"{origin}: has {kind} weights, which are read with the gguf package ({error}); "
            "pip install --upgrade 'pybatcher[gguf]'"
        ) from error

    def dequantise(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        values: NDArray[np.float32] = dequantize(rows, number)
        return values

    return dequantise

"""Weights in blocks that the engine does not know, made into weights that it does.

It takes plain numbers and blocks of int8 and int4 as they are, and rounds them to its own dtype
where that is another. All other kinds are made into numbers here, by the reference implementation
in the `gguf` package.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFormatError
from .blocks import BLOCKS, block_name
from .tensors import Tensor

__all__ = ["check_conversion", "convert", "converted", "target_dtype"]

_CHUNK = 2**20  # elements converted at a time
_ENGINE_HAS = ("int8", "int4")
_WHOLE_IN_INT8 = ("int4", "Q5_0", "IQ4_NL")
"""Kinds of 32 elements that are one f16 scale, in the first two bytes, times int8 numbers."""

_WOULD_KEEP_MORE = {
    "int4": "; dtype='int8' would keep nearly all of what they hold",
    "int8": "; dtype='bf16' would keep more of what they hold",
}

_Rows = NDArray[np.uint8]
_Function = Callable[[_Rows], NDArray[Any]]


def converted(tensors: Mapping[str, Tensor], dtype: str, origin: str) -> dict[str, Any]:
    """All tensors of `origin` as an engine of `dtype` takes them: see the two below.

    By name (array, dtype), or, what is yet to be converted, (function, dtype, rows,
    columns): no more of that than the engine packs at a time is ever in memory.
    """
    check_conversion(tensors, dtype, origin)
    return {name: _entry(tensor, dtype) for name, tensor in tensors.items()}


def _entry(tensor: Tensor, dtype: str) -> tuple[Any, ...]:
    target = target_dtype(tensor.dtype, dtype)
    if target == tensor.dtype:
        return tensor.array, tensor.dtype
    return partial(convert, tensor, target), target, *tensor.shape


def check_conversion(tensors: Mapping[str, Tensor], dtype: str, origin: str) -> None:
    """Whether `convert` can do it, and one warning if blocks lose something in the engine.

    Raises ModelFormatError where the `gguf` package is needed and is not there.
    """
    kinds = Counter(tensor.dtype for tensor in tensors.values() if tensor.dtype in BLOCKS)
    for kind in kinds:
        if kind not in _ENGINE_HAS:
            _reference(kind, origin)
    lossless = {"f32": tuple(BLOCKS), "int8": ("int8", *_WHOLE_IN_INT8), "int4": ("int4",)}
    lost = sorted((block_name(k), n) for k, n in kinds.items() if k not in lossless.get(dtype, ()))
    if lost:
        counts = " and ".join(f"{count} of {name}" for name, count in lost)
        advice = _WOULD_KEEP_MORE.get(dtype, "")
        warnings.warn(
            f"{origin}: matrices are rounded to {dtype}, the one dtype of the engine: {counts}"
            f"{advice}",
            stacklevel=3,
        )


def target_dtype(kind: str, dtype: str) -> str:
    """What `convert` makes of weights of a kind for an engine of `dtype`.

    What the engine knows stays what it is. Other blocks become f32, or bf16 for a bf16
    engine; int8 blocks for an int8 engine where that loses nothing.
    """
    if dtype == "int8" and kind in _WHOLE_IN_INT8:
        return "int8"
    if kind not in BLOCKS or kind in _ENGINE_HAS:
        return kind
    return "bf16" if dtype == "bf16" else "f32"


def convert(tensor: Tensor, target: str) -> NDArray[Any]:
    """The array of a matrix in blocks as `target`, one that `target_dtype` named for it."""
    kind = tensor.dtype
    if target == "int8":
        return _in_parts(tensor, lambda rows: _to_int8(rows, kind), 34 / 32, np.uint8)
    to_f32 = _reference(kind, tensor.source)
    if target == "bf16":
        return _in_parts(tensor, lambda rows: _to_bf16(to_f32(rows)), 1, np.uint16)
    return _in_parts(tensor, to_f32, 1, np.float32)


def _in_parts(tensor: Tensor, function: _Function, width: float, dtype: Any) -> NDArray[Any]:
    """`function` over some rows at a time, so that what it needs on the way stays small.

    width: of the result, in items per element.
    """
    n_rows, n_columns = tensor.shape
    out = np.empty((n_rows, int(n_columns * width)), dtype)
    step = max(1, _CHUNK // n_columns)
    for first in range(0, n_rows, step):
        part = slice(first, first + step)
        with np.errstate(all="ignore"):  # the engine refuses what is not finite, by name
            out[part] = function(tensor.array[part])
    return out


def _to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest even, as the engine does."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    not_a_number = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(not_a_number, (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _to_int8(rows: _Rows, kind: str) -> _Rows:
    """The same scales, and the numbers that they multiply."""
    blocks = rows.reshape(len(rows), -1, BLOCKS[kind].n_bytes)
    out = np.empty((*blocks.shape[:2], 34), np.uint8)
    out[..., :2] = blocks[..., :2]
    if kind == "int4":
        pairs = blocks[..., 2:]
        out[..., 2:18] = (pairs & 15) - np.uint8(8)
        out[..., 18:] = (pairs >> 4) - np.uint8(8)
    else:
        ones = blocks.copy()
        ones[..., :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
        numbers = _reference(kind, "")(ones.reshape(rows.shape)).astype(np.int8)
        out[..., 2:] = numbers.view(np.uint8).reshape(*blocks.shape[:2], 32)
    return out.reshape(len(rows), -1)


def _reference(kind: str, origin: str) -> Callable[[_Rows], NDArray[np.float32]]:
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

    def dequantise(rows: _Rows) -> NDArray[np.float32]:
        values: NDArray[np.float32] = dequantize(rows, number)
        return values

    return dequantise

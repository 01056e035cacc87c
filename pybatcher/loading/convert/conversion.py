"""Convert weights in formats that are not native to the engine.

The engine reads f32, f16, bf16 and the native block formats, ENGINE_BLOCKS. A matrix keeps that
dtype, or is rounded to the engine's. MXFP4 in parts becomes blocks of mxfp4. The other blocks of
GGUF are dequantised here, by the reference implementation in the `gguf` package. A `StoredWeight`
makes its own arrays.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelFormatError
from ...errors.distribution import install_extra
from ..checkpoints.blocks import BLOCKS, ENGINE_BLOCKS, MXFP4_PARTS, block_name
from ..checkpoints.rounding import to_bf16
from ..checkpoints.tensors import Tensor
from .mxfp4 import joined_blocks

__all__ = [
    "check_conversion",
    "convert",
    "convert_tensors",
    "engine_dtype",
    "native_matrices",
    "target_dtype",
]

_CHUNK = 2**20  # elements converted at a time
_PRECISION_ADVICE = {
    "int4": "; dtype='int8' would keep nearly all of what they hold",
    "int8": "; dtype='bf16' would keep more of what they hold",
}

_Rows = NDArray[np.uint8]
_Function = Callable[[_Rows], NDArray[Any]]


def engine_dtype(dtype: str) -> str:
    """Return the engine's dtype for a model whose prevailing dtype is `dtype`."""
    if dtype in ("f32", "int8", "int4"):
        return dtype
    return "int8" if dtype in ENGINE_BLOCKS else "bf16"


def native_matrices(tensors: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the matrices that can keep their dtype; none if all are plain numbers.

    Matrices of plain numbers, of ENGINE_BLOCKS and from quantisation programs can keep it.
    """
    if not any(tensor.dtype in BLOCKS or tensor.stored for tensor in tensors.values()):
        return set()
    matrices = {name: tensor for name, tensor in tensors.items() if tensor.array.ndim == 2}
    return {name for name, tensor in matrices.items() if _own_dtype(tensor) is not None}


def _own_dtype(tensor: Tensor) -> str | None:
    if tensor.stored is not None:
        return tensor.stored.own_dtype
    kind = tensor.dtype
    if kind not in BLOCKS or kind in ENGINE_BLOCKS:
        return kind
    return "mxfp4" if kind == MXFP4_PARTS else None


def convert_tensors(
    tensors: Mapping[str, Tensor], dtype: str, origin: str, native: Collection[str] = ()
) -> dict[str, Any]:
    """Return the tensors of `origin` in the form that an engine of `dtype` reads, by name.

    A value is (array, dtype), or (function, dtype, rows, columns) for a matrix that has to be
    converted. The engine calls the function when it packs that matrix, so that few converted
    matrices are in memory at a time. A fifth element is the order of the function's columns
    (`StoredWeight.order`), unless they are in input order.

    native: names from `native_matrices`, of matrices that are not rounded to `dtype`.

    Warns as `check_conversion` does. Raises ModelFormatError if the `gguf` package is required and
    is not installed.
    """
    check_conversion(tensors, dtype, origin, native)
    entries = {}
    for name, tensor in tensors.items():
        own = _own_dtype(tensor) if name in native else None
        entries[name] = _entry(tensor, own or dtype)
    return entries


def _entry(tensor: Tensor, dtype: str) -> tuple[Any, ...]:
    if tensor.stored is not None:
        made = tensor.stored.takes(dtype)
        entry = (partial(tensor.stored.make, made), made, *tensor.shape)
        order = tensor.stored.order(made)
        return entry if order is None else (*entry, order)
    target = target_dtype(tensor.dtype, dtype)
    if target == tensor.dtype:
        return tensor.array, tensor.dtype
    return partial(convert, tensor, target), target, *tensor.shape


def check_conversion(
    tensors: Mapping[str, Tensor], dtype: str, origin: str, native: Collection[str] = ()
) -> None:
    """Check that `convert` can convert all tensors; warn once if blocks lose precision.

    Raises ModelFormatError if the `gguf` package is required and is not installed.
    """
    dequantised = {
        tensor.dtype: None
        for tensor in tensors.values()
        if tensor.dtype not in (*ENGINE_BLOCKS, MXFP4_PARTS)
    }
    for kind in dequantised:
        if kind in BLOCKS:
            _reference(kind, origin)
    rounded = [tensor.dtype for name, tensor in tensors.items() if name not in native]
    kinds = Counter(kind for kind in rounded if kind in BLOCKS)
    lost = sorted((block_name(k), n) for k, n in kinds.items() if not _holds(dtype, k))
    _warn_of_rounding(lost, dtype, origin)
    stored = Counter(_rounding(tensor, dtype, name in native) for name, tensor in tensors.items())
    for target in sorted({target for target, _ in stored if target}):
        lost = sorted((name, count) for (to, name), count in stored.items() if to == target)
        _warn_of_rounding(lost, target, origin)


def _holds(dtype: str, kind: str) -> bool:
    """Return True if a matrix of `dtype` represents all numbers of the block format `kind`."""
    block = BLOCKS[kind]
    held = {"f32": True, "bf16": block.in_bf16, "int8": block.in_int8}
    return kind == dtype or held.get(dtype, False)


def _rounding(tensor: Tensor, dtype: str, is_native: bool) -> tuple[str, str]:
    """Return the dtype that a stored matrix is rounded to and its format; "" if it is exact.

    FP8 becomes bf16 without a warning, as f32 becomes bf16 in a bf16 engine.
    """
    stored = tensor.stored
    if stored is None:
        return "", ""
    target = stored.own_dtype if is_native else dtype
    return ("", "") if target == "bf16" or stored.holds(target) else (target, stored.format)


def _warn_of_rounding(lost: list[tuple[str, int]], dtype: str, origin: str) -> None:
    """Warn about matrices that lose precision in `dtype`, by format; an empty list is silent."""
    if lost:
        counts = " and ".join(f"{count} of {name}" for name, count in lost)
        advice = _PRECISION_ADVICE.get(dtype, "")
        warnings.warn(f"{origin}: matrices are rounded to {dtype}: {counts}{advice}", stacklevel=4)


def target_dtype(kind: str, dtype: str) -> str:
    """Return the dtype to which weights of format `kind` are converted for an engine of `dtype`.

    A native format is not converted, and MXFP4 in parts becomes mxfp4. Other blocks become f32, or
    bf16 for a bf16 engine.
    """
    if kind == MXFP4_PARTS:
        return "mxfp4"
    if kind not in BLOCKS or kind in ENGINE_BLOCKS:
        return kind
    return "bf16" if dtype == "bf16" else "f32"


def convert(tensor: Tensor, target: str) -> NDArray[Any]:
    """Return the values of a matrix in blocks as `target`, a dtype from `target_dtype`.

    The shape is (rows, columns) for float32 and for bfloat16, whose bits are uint16. Blocks of
    mxfp4 are bytes: (rows, columns / 32 * 17).
    """
    if target == "mxfp4":
        return joined_blocks(tensor)
    to_f32 = _reference(tensor.dtype, tensor.source)
    if target == "bf16":
        return _in_parts(tensor, lambda rows: to_bf16(to_f32(rows)), np.uint16)
    return _in_parts(tensor, to_f32, np.float32)


def _in_parts(tensor: Tensor, function: _Function, dtype: Any) -> NDArray[Any]:
    """Apply `function` to a few rows at a time, which bounds its temporary memory."""
    n_rows, n_columns = tensor.shape
    out = np.empty((n_rows, n_columns), dtype)
    step = max(1, _CHUNK // n_columns)
    for first in range(0, n_rows, step):
        part = slice(first, first + step)
        with np.errstate(all="ignore"):  # the engine refuses a tensor that is not finite
            out[part] = function(tensor.array[part])
    return out


def _reference(kind: str, origin: str) -> Callable[[_Rows], NDArray[np.float32]]:
    """Return the `gguf` package's function that dequantises rows of `kind` to float32.

    Raises ModelFormatError if the package is not installed or does not know `kind`.
    """
    try:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        number = GGMLQuantizationType[block_name(kind)]
        dequantize(np.zeros((1, BLOCKS[kind].n_bytes), np.uint8), number)
    except (ImportError, KeyError, NotImplementedError) as error:
        raise ModelFormatError(
            f"{origin}: has {block_name(kind)} weights, which are read with the gguf package "
            f"({error}); " + install_extra("gguf", upgrade=True)
        ) from error

    def dequantise(rows: _Rows) -> NDArray[np.float32]:
        values: NDArray[np.float32] = dequantize(rows, number)
        return values

    return dequantise

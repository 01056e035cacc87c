"""Map the tensors of a .safetensors file into memory.

Format: https://huggingface.co/docs/safetensors: 8 bytes with the header's length, a JSON
header, the data. The safetensors library validates the file: known types, offsets without gap
or overlap, sizes that fit the shapes, the right file length. It gives no access to the mapped
memory (and numpy has no bf16), so that the offsets are read here from the same header.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..errors import ModelFormatError
from .fields import shown
from .json_file import parse_json
from .tensors import Tensor

__all__ = ["map_tensors"]

_DTYPES: dict[str, tuple[str, Any]] = {
    "F32": ("f32", np.dtype("<f4")),
    "F16": ("f16", np.dtype("<f2")),
    "BF16": ("bf16", np.dtype("<u2")),
    "U8": ("U8", np.dtype("u1")),
    "I64": ("I64", np.dtype("<i8")),
    "I32": ("I32", np.dtype("<i4")),
    "I8": ("I8", np.dtype("i1")),
    "F8_E4M3": ("F8_E4M3", np.dtype("u1")),
}
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 32 * 2**20


def map_tensors(path: Path) -> dict[str, Tensor]:
    """Return the file's tensors by name, as read-only views of the mapped file.

    A tensor of any type but f32, f16, bf16 and U8 has the type's name in the file as
    `dtype`; `gather` refuses it where the model needs it. Its array are whole numbers, the
    bytes of e4m3 numbers, or of other types (bytes of the tensor,).
    Raises ModelFormatError if the file is not a whole, valid safetensors file.
    """
    if not path.is_file():
        raise ModelFormatError(f"{path}: no such file")
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"{path}: cannot be mapped: {error}") from error
    start, header = _read_header(data, path)
    _check_with_library(path)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        source = f"{path}: tensor {shown(name)}"
        dtype, shape, begin, end = _read_entry(entry, source)
        raw: NDArray[Any] = data[start + begin : start + end]
        array = raw
        if dtype in _DTYPES:
            dtype, numpy_dtype = _DTYPES[dtype]
            try:
                array = _aligned(raw, numpy_dtype).reshape(shape)
            except ValueError as error:  # 65 dimensions, or a zero beside a huge size
                raise ModelFormatError(f"{source}: shape {shown(shape)}: {error}") from error
        tensors[name] = Tensor(array, dtype, source, mapped=np.may_share_memory(array, raw))
    return tensors


def _read_header(data: NDArray[np.uint8], path: Path) -> tuple[int, dict[str, Any]]:
    """Return the offset of the data and the JSON header, whose entries are not yet checked.

    Stricter than the library in two ways: the header's length is bounded, and no name
    may appear twice.
    """
    length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    start = _LENGTH_BYTES + length
    if length > _MAX_HEADER_BYTES or start > data.size:
        raise ModelFormatError(
            f"{path}: the header's length is {length}; expected at most "
            f"{min(_MAX_HEADER_BYTES, max(data.size - _LENGTH_BYTES, 0))}"
        )
    return start, parse_json(data[_LENGTH_BYTES:start].tobytes(), f"{path}: header")


def _read_entry(entry: object, source: str) -> tuple[str, list[int], int, int]:
    """Return type, shape, begin and end of an entry. Only objects and lists are accepted."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            return dtype, shape, begin, end
    raise ModelFormatError(
        f"{source}: is {shown(entry)}; expected an object with dtype, shape and data_offsets"
    )


def _check_with_library(path: Path) -> None:
    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFormatError(f"{path}: not a valid safetensors file: {error}") from error


def _aligned(data: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    """View the bytes as `dtype`; copy them only where they are not aligned for it."""
    if data.ctypes.data % dtype.itemsize:
        data = data.copy()
    return data.view(dtype)

"""Map the tensors of a .safetensors file into memory.

The format is 8 bytes with the header's length, a JSON header, and the data
(https://huggingface.co/docs/safetensors). The checks are as strict as those of the safetensors
library: types are known, data have no gap or overlap, sizes fit the shapes, and the file has the
right length. The library is not used, because it does not expose the mapped memory, numpy has no
bf16, and a Python without GIL has to compile it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelFormatError
from ..checkpoints.fields import shown
from ..checkpoints.json_file import parse_json
from ..checkpoints.model_files import map_file
from ..checkpoints.tensors import Tensor

__all__ = ["map_tensors"]

_DTYPES: dict[str, tuple[str, Any]] = {
    "F64": ("F64", np.dtype("<f8")),
    "F32": ("f32", np.dtype("<f4")),
    "F16": ("f16", np.dtype("<f2")),
    "BF16": ("bf16", np.dtype("<u2")),
    "U8": ("U8", np.dtype("u1")),
    "I64": ("I64", np.dtype("<i8")),
    "I32": ("I32", np.dtype("<i4")),
    "I8": ("I8", np.dtype("i1")),
    "F8_E4M3": ("F8_E4M3", np.dtype("u1")),
    "F8_E8M0": ("F8_E8M0", np.dtype("u1")),
}
# The bits of a number of each type that a file may have.
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 32 * 2**20
_MAX_DIMENSIONS = 64  # numpy's


class _Entry(NamedTuple):
    """A tensor's entry in the header. begin, end: offsets in the data."""

    begin: int
    end: int
    name: str
    dtype: str
    shape: list[int]


def map_tensors(path: Path) -> dict[str, Tensor]:
    """Return the file's tensors by name, as read-only views of the mapped file.

    A tensor of a type other than f32, f16, bf16 and U8 has the type's name in the file as `dtype`;
    `gather` refuses it if the model needs it. Its array has numbers for F64 and an integer type,
    bytes for e4m3, and for other types the bytes of the tensor in one dimension. Raises
    ModelFormatError if the file is not a whole, valid safetensors file.
    """
    data = map_file(path)
    start, header = _read_header(data, path)
    _check_metadata(header.pop("__metadata__", None), path)
    entries = [_read_entry(name, entry, path) for name, entry in header.items()]
    _check_layout(entries, data.size - start, path)
    tensors = {}
    for begin, end, name, dtype, shape in entries:
        source = _source(path, name)
        raw: NDArray[Any] = data[start + begin : start + end]
        array = raw
        if dtype in _DTYPES:
            dtype, numpy_dtype = _DTYPES[dtype]
            try:
                array = raw.view(numpy_dtype).reshape(shape)
            except ValueError as error:  # a zero beside a huge size
                raise ModelFormatError(f"{source}: shape {shown(shape)}: {error}") from error
        tensors[name] = Tensor(array, dtype, source, mapped=True)
    return tensors


def _read_header(data: NDArray[np.uint8], path: Path) -> tuple[int, dict[str, Any]]:
    """Return the offset of the data and the JSON header, whose entries are not yet checked.

    The checks are stricter than the library's: no name may appear twice, and the maximum length of
    the header is a third of the library's.
    """
    length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    start = _LENGTH_BYTES + length
    if length > _MAX_HEADER_BYTES or start > data.size:
        raise ModelFormatError(
            f"{path}: the header's length is {length}; expected at most "
            f"{min(_MAX_HEADER_BYTES, max(data.size - _LENGTH_BYTES, 0))}"
        )
    return start, parse_json(data[_LENGTH_BYTES:start].tobytes(), f"{path}: header")


def _source(path: Path, name: str) -> str:
    return f"{path}: tensor {shown(name)}"


def _check_metadata(metadata: object, path: Path) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ModelFormatError(
            f"{path}: __metadata__ is {shown(metadata)}; expected an object of texts"
        )


def _read_entry(name: str, entry: object, path: Path) -> _Entry:
    """Return a tensor's entry after checking the types of its values, but not its layout."""
    source = _source(path, name)
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]}:
            pass
        case _:
            raise ModelFormatError(
                f"{source}: is {shown(entry)}; expected an object with dtype, shape and "
                "data_offsets"
            )
    if dtype not in _BITS:
        raise ModelFormatError(f"{source}: dtype is {shown(dtype)}; expected {', '.join(_BITS)}")
    if len(shape) > _MAX_DIMENSIONS or not all(_is_size(side) for side in shape):
        raise ModelFormatError(
            f"{source}: shape is {shown(shape)}; expected at most {_MAX_DIMENSIONS} whole "
            "numbers from 0 to 2**63 - 1"
        )
    if not _is_size(begin) or not _is_size(end):
        raise ModelFormatError(
            f"{source}: data_offsets are {shown([begin, end])}; expected whole numbers from 0 to "
            "2**63 - 1"
        )
    return _Entry(begin, end, name, dtype, shape)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _check_layout(entries: list[_Entry], n_bytes: int, path: Path) -> None:
    """Raise ModelFormatError unless the tensors fill `n_bytes` of data without gap or overlap."""
    filled = 0
    for begin, end, name, dtype, shape in sorted(entries):
        needed, odd_bits = divmod(math.prod(shape) * _BITS[dtype], 8)
        if odd_bits:
            raise ModelFormatError(
                f"{_source(path, name)}: {dtype} of shape {shown(shape)} ends within a byte"
            )
        if (begin, end) != (filled, filled + needed):
            raise ModelFormatError(
                f"{_source(path, name)}: data_offsets are [{begin}, {end}]; expected "
                f"[{filled}, {filled + needed}], by its size and the end of the one before it"
            )
        filled = end
    if filled != n_bytes:
        raise ModelFormatError(
            f"{path}: has {n_bytes} bytes of data; expected {filled}, by its header"
        )

"""Read the header of a GGUF file: the metadata, and the type, shape and place of each tensor.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Magic, version, two counts;
pairs of key and value; for each tensor its name, sizes, type and offset; then, from the next
multiple of the alignment, the data, each tensor from such a multiple on.

The file is not trusted. Every length is checked against the rest of the header before anything
of that length is allocated, and every count has a limit, far above that of any real model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelFormatError
from ..checkpoints.fields import shown
from .types import TYPES, GgufType

__all__ = ["GgufHeader", "GgufTensor", "read_header"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_HEADER_BYTES = 256 * 2**20
_MAX_ENTRIES = 2**16  # keys, and tensors
_MAX_NAME_BYTES = 2**10
_MAX_TEXTS = 2**22  # in all arrays together; a str takes about 50 bytes more than its length
_MAX_DIMENSIONS = 4
_MAX_SIZE = 2**40
_MAX_ALIGNMENT = 2**20

_ALIGNMENT_KEY = "general.alignment"
_DEFAULT_ALIGNMENT = 32

_BOOL, _TEXT, _ARRAY = 7, 8, 9
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_U32, _U64 = Struct("<I"), Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor in bytes [begin, end) of the file. `shape`: outermost dimension first."""

    name: str
    type: GgufType
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of a GGUF file.

    metadata: an int, float, bool or str by key; an array of strings is a list, any other array
        is a numpy array.
    tensors: the tensors in the order of the file.
    """

    metadata: dict[str, Any]
    tensors: list[GgufTensor]


def read_header(data: NDArray[np.uint8], path: Path) -> GgufHeader:
    """Return the header of the GGUF file whose bytes are `data`.

    Raises ModelFormatError, which names `path`, if the header is not valid.
    """
    cursor = _Cursor(data[:_MAX_HEADER_BYTES].data, data.size, str(path))
    if bytes(cursor.take(4, "the magic")) != _MAGIC:
        raise ModelFormatError(f"{path}: does not begin with 'GGUF'; expected a GGUF file")
    version = cursor.u32("the version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        found = f"{version}, which is big-endian" if swapped else str(version)
        raise ModelFormatError(f"{path}: GGUF version {found}; expected little-endian 2 or 3")
    n_tensors = cursor.count("the number of tensors", _MAX_ENTRIES)
    n_keys = cursor.count("the number of keys", _MAX_ENTRIES)
    metadata = _read_metadata(cursor, n_keys)
    return GgufHeader(metadata, _read_tensors(cursor, n_tensors, metadata))


def _read_metadata(cursor: _Cursor, n_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(n_keys):
        key = cursor.text(f"key {index}", _MAX_NAME_BYTES)
        if key in metadata:
            raise cursor.error(f"key {shown(key)} appears twice")
        metadata[key] = _read_value(cursor, f"key {shown(key)}")
    return metadata


def _read_value(cursor: _Cursor, what: str) -> Any:
    kind = cursor.u32(what)
    if kind == _TEXT:
        return cursor.text(what)
    if kind == _BOOL:
        return bool(_checked_bools(cursor.array(1, np.dtype("u1"), what), cursor, what)[0])
    if kind in _NUMBERS:
        return cursor.array(1, _NUMBERS[kind], what)[0].item()
    if kind != _ARRAY:
        raise cursor.error(f"{what} has type {kind}; expected 0 to 12")
    kind = cursor.u32(what)
    if kind == _TEXT:
        return cursor.texts(what)
    if kind == _BOOL:
        values = cursor.array(cursor.u64(what), np.dtype("u1"), what)
        return _checked_bools(values, cursor, what)
    if kind in _NUMBERS:
        return cursor.array(cursor.u64(what), _NUMBERS[kind], what)
    raise cursor.error(f"{what} is an array of type {kind}; expected 0 to 8, or 10 to 12")


def _checked_bools(values: NDArray[Any], cursor: _Cursor, what: str) -> NDArray[np.bool_]:
    if values.size and values.max() > 1:
        raise cursor.error(f"{what} is a truth value of {values.max()}; expected 0 or 1")
    return values.astype(np.bool_)


def _read_tensors(cursor: _Cursor, n_tensors: int, metadata: dict[str, Any]) -> list[GgufTensor]:
    alignment = _alignment(cursor, metadata)
    entries, names = [], set()
    for index in range(n_tensors):
        name = cursor.text(f"the name of tensor {index}", _MAX_NAME_BYTES)
        what = f"tensor {shown(name)}"
        if name in names:
            raise cursor.error(f"{what} appears twice")
        names.add(name)
        shape = _read_shape(cursor, what)
        entries.append((name, _read_type(cursor, shape, what), shape, cursor.u64(what)))
    start = -(-cursor.place // alignment) * alignment
    tensors, end = [], 0
    for name, kind, shape, offset in entries:
        begin = -(-end // alignment) * alignment
        end = begin + math.prod(shape) // kind.n_elements * kind.n_bytes
        if offset != begin:
            raise cursor.error(
                f"tensor {shown(name)} begins at {offset}; expected {begin}, "
                "the first multiple of the alignment past the tensor before it"
            )
        if start + end > cursor.file_size:
            raise cursor.error(
                f"tensor {shown(name)} goes on to byte {start + end} of a file of "
                f"{cursor.file_size}; expected a file that is not cut"
            )
        tensors.append(GgufTensor(name, kind, shape, start + begin, start + end))
    return tensors


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
    whole = isinstance(alignment, int) and not isinstance(alignment, bool)
    if not whole or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(
            f"key {_ALIGNMENT_KEY} is {shown(alignment)}; "
            f"expected a power of two up to {_MAX_ALIGNMENT}"
        )
    return int(alignment)


def _read_shape(cursor: _Cursor, what: str) -> tuple[int, ...]:
    """Return a tensor's shape, outermost dimension first; the file has the innermost first."""
    n_dimensions = cursor.u32(what)
    if not 1 <= n_dimensions <= _MAX_DIMENSIONS:
        raise cursor.error(f"{what} has {n_dimensions} dimensions; expected 1 to {_MAX_DIMENSIONS}")
    shape = tuple(cursor.u64(what) for _ in range(n_dimensions))[::-1]
    if not 1 <= math.prod(shape) <= _MAX_SIZE:
        raise cursor.error(f"{what} has shape {list(shape)}; expected 1 to {_MAX_SIZE} elements")
    return shape


def _read_type(cursor: _Cursor, shape: tuple[int, ...], what: str) -> GgufType:
    number = cursor.u32(what)
    kind = TYPES.get(number)
    if kind is None:
        known = ", ".join(f"{n} ({t.name})" for n, t in sorted(TYPES.items()))
        raise cursor.error(f"{what} has type {number}; expected one of {known}")
    if shape[-1] % kind.n_elements:
        raise cursor.error(
            f"{what} is {kind.name} with rows of {shape[-1]}; "
            f"expected a multiple of {kind.n_elements}"
        )
    return kind


class _Cursor:
    """A read position in the header. Raises ModelFormatError instead of reading past its end."""

    def __init__(self, header: memoryview, file_size: int, source: str) -> None:
        self._header = header
        self._source = source
        self._n_texts = 0
        self.file_size = file_size
        self.place = 0

    def error(self, what: str) -> ModelFormatError:
        return ModelFormatError(f"{self._source}: {what}")

    def take(self, n_bytes: int, what: str) -> memoryview:
        left = len(self._header) - self.place
        if n_bytes > left:
            if self.file_size > len(self._header):
                raise self.error(f"{what}: the header is longer than {_MAX_HEADER_BYTES} bytes")
            raise self.error(f"{what} needs {n_bytes} bytes; the file ends after {left}")
        taken = self._header[self.place : self.place + n_bytes]
        self.place += n_bytes
        return taken

    def u32(self, what: str) -> int:
        value: int = _U32.unpack(self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack(self.take(8, what))[0]
        return value

    def count(self, what: str, most: int) -> int:
        value = self.u64(what)
        if value > most:
            raise self.error(f"{what} is {value}; expected at most {most}")
        return value

    def text(self, what: str, most: int = _MAX_HEADER_BYTES) -> str:
        n_bytes = self.count(f"{what}: its length", most)
        try:
            return str(self.take(n_bytes, what), "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {error}") from error

    def texts(self, what: str) -> list[str]:
        n_texts = self.count(f"{what}: its length", _MAX_TEXTS - self._n_texts)
        self._n_texts += n_texts
        if n_texts * 8 > len(self._header) - self.place:
            self.take(n_texts * 8, what)
        return [self.text(f"{what}, element {index}") for index in range(n_texts)]

    def array(self, n_values: int, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
        return np.frombuffer(self.take(n_values * dtype.itemsize, what), dtype)

"""Map the tensors of a GGUF file into memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelFormatError
from ...models.hub import parts_of
from ..checkpoints.fields import Fields, shown
from ..checkpoints.model_files import is_file, map_file
from ..checkpoints.tensors import Tensor
from .header import GgufTensor, read_header

__all__ = ["GgufFile", "is_gguf", "map_gguf", "part_files"]

_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An opened GGUF file.

    metadata: values by key.
    tensors: read-only views of the mapped file, by GGUF's names.
    """

    metadata: Fields
    tensors: dict[str, Tensor]


def is_gguf(path: Path) -> bool:
    """Return True for a file with the suffix .gguf, and for a file that begins with the magic."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return path.suffix == ".gguf" or file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False


def part_files(path: Path) -> list[Path]:
    """Return the files of the model that `path` belongs to, by its name; absent ones too."""
    return [path.with_name(name) for name in parts_of(path.name)]


def map_gguf(path: Path) -> GgufFile:
    """Open a GGUF file: read its metadata and map its weights, without reading them.

    path: the file, or the first part of a model in several files, which are mapped together.

    A tensor of an unsupported type has GGUF's name of that type as `dtype`; `gather` refuses it
    if the model needs it. Raises ModelFormatError if a file is not a whole, valid GGUF file, and
    if parts are absent, in another order or of several models.
    """
    first = _map_file(path)
    n_parts = first.metadata.integer("split.count", 0, 2**16 - 1, 1)
    if n_parts <= 1:
        return first
    files = _checked_parts(path, first.metadata, n_parts)
    tensors = dict(first.tensors)
    for number, file in enumerate(files[1:], 1):
        part = _map_file(file)
        for name in ("general.architecture", "split.count", "split.tensors.count"):
            if name in part.metadata or name == "split.count":
                _check_equal(part.metadata, name, first.metadata.get(name), files[0])
        _check_equal(part.metadata, "split.no", number, None)
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise ModelFormatError(f"{tensor.source} is in {tensors[name].source} too")
            tensors[name] = tensor
    total = first.metadata.integer("split.tensors.count", 0, 2**31 - 1, len(tensors))
    if total != len(tensors):
        raise first.metadata.error("split.tensors.count", f"{len(tensors)}, as in all parts")
    return GgufFile(first.metadata, tensors)


def _checked_parts(path: Path, metadata: Fields, n_parts: int) -> list[Path]:
    """Return the files of a model in several, after checking that `path` is the first of them."""
    files = part_files(path)
    if len(files) != n_parts:
        raise metadata.error(
            "split.count",
            f"{len(files)} by the file's name; a first part is NAME-00001-of-{n_parts:05}.gguf",
        )
    number = metadata.integer("split.no", 0, n_parts - 1)
    if path != files[number]:
        raise metadata.error("split.no", f"{files.index(path)}, by the name of the file")
    if number:
        raise ModelFormatError(
            f"{path}: is part {number + 1} of {n_parts}; open the first, {files[0].name}"
        )
    return files


def _check_equal(metadata: Fields, name: str, expected: Any, first: Path | None) -> None:
    if metadata.get(name) != expected:
        of_first = "by the name of the file" if first is None else f"as in {first.name}"
        raise metadata.error(name, f"{shown(expected)}, {of_first}")


def _map_file(path: Path) -> GgufFile:
    """Open one file, which may be a part of a model."""
    if not is_file(path):
        own = parts_of(path.name)
        part = f"; it is part {own.index(path.name) + 1} of {len(own)}" if len(own) > 1 else ""
        raise ModelFormatError(f"{path}: no such file{part}")
    data = map_file(path)
    header = read_header(data, path)
    tensors = {entry.name: _tensor(data, entry, path) for entry in header.tensors}
    return GgufFile(Fields(header.metadata, str(path)), tensors)


def _tensor(data: NDArray[np.uint8], entry: GgufTensor, path: Path) -> Tensor:
    """Return the tensor's view of the file: (..., elements), or (..., bytes of a row's blocks).

    The tensor is copied only if the file's alignment is too small for the element type.
    """
    raw: NDArray[Any] = data[entry.begin : entry.end]
    mapped = raw.ctypes.data % entry.type.array_dtype.itemsize == 0
    if not mapped:  # the file has an alignment of 1 or 2
        raw = raw.copy()
    array = raw.view(entry.type.array_dtype).reshape(*entry.shape[:-1], -1)
    source = f"{path}: tensor {shown(entry.name)}"
    return Tensor(array, entry.type.dtype, source, mapped=mapped)

"""Map the tensors of a GGUF file into memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelFormatError
from ..checkpoints.fields import Fields, shown
from ..checkpoints.tensors import Tensor
from .header import GgufTensor, read_header

__all__ = ["GgufFile", "is_gguf", "map_gguf"]

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


def map_gguf(path: Path) -> GgufFile:
    """Open a GGUF file: read its metadata and map its weights, without reading them.

    A tensor of an unsupported type has GGUF's name of that type as `dtype`; `gather` refuses it
    if the model needs it. Raises ModelFormatError if the file is not a whole, valid GGUF file.
    """
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"{path}: cannot be mapped: {error}") from error
    header = read_header(data, path)
    metadata = Fields(header.metadata, str(path))
    n_files = metadata.integer("split.count", 0, 2**16, 1)
    if n_files > 1:
        raise metadata.error("split.count", "1; merge the files with llama-gguf-split --merge")
    return GgufFile(metadata, {entry.name: _tensor(data, entry, path) for entry in header.tensors})


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

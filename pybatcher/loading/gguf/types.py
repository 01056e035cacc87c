"""Element types of GGUF tensors, by their numbers in the format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checkpoints.blocks import BLOCKS, Block, block_name

__all__ = ["TYPES", "GgufType"]


@dataclass(frozen=True, slots=True)
class GgufType:
    """An element type: `n_elements` neighbouring elements of a row take `n_bytes` bytes.

    name: the type's name in the GGUF format.
    dtype: the `dtype` of the `Tensor`.
    array_dtype: the numpy type of one value; uint8 for blocks.
    """

    name: str
    dtype: str
    n_elements: int
    n_bytes: int
    array_dtype: np.dtype[Any]


_PLAIN = {
    0: ("F32", "f32", "<f4"),
    1: ("F16", "f16", "<f2"),
    30: ("BF16", "bf16", "<u2"),
    24: ("I8", "I8", "i1"),
    25: ("I16", "I16", "<i2"),
    26: ("I32", "I32", "<i4"),
    27: ("I64", "I64", "<i8"),
    28: ("F64", "F64", "<f8"),
}


def _plain(name: str, dtype: str, array_dtype: str) -> GgufType:
    return GgufType(name, dtype, 1, np.dtype(array_dtype).itemsize, np.dtype(array_dtype))


def _blocks(dtype: str, block: Block) -> GgufType:
    return GgufType(block_name(dtype), dtype, block.n_elements, block.n_bytes, np.dtype(np.uint8))


TYPES = {number: _plain(*entry) for number, entry in _PLAIN.items()} | {
    block.gguf_type: _blocks(dtype, block)
    for dtype, block in BLOCKS.items()
    if block.gguf_type is not None
}

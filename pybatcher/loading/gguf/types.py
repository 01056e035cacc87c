"""Element types of GGUF tensors, by their numbers in the format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checkpoints.blocks import BLOCKS, block_name

__all__ = ["TYPES", "GgufType"]


@dataclass(frozen=True, slots=True)
class GgufType:
    """An element type: `n_elements` neighbouring elements of a row take `n_bytes` bytes.

    name: in the GGUF format.
    dtype: of the `Tensor`.
    array_dtype: numpy type of one value; uint8 for blocks.
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
_BLOCKS = {
    2: "int4",
    3: "Q4_1",
    6: "q5_0",
    7: "Q5_1",
    8: "int8",
    10: "Q2_K",
    11: "Q3_K",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "iq4_nl",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "mxfp4",
}


def _plain(name: str, dtype: str, array_dtype: str) -> GgufType:
    return GgufType(name, dtype, 1, np.dtype(array_dtype).itemsize, np.dtype(array_dtype))


def _blocks(dtype: str) -> GgufType:
    block = BLOCKS[dtype]
    return GgufType(block_name(dtype), dtype, block.n_elements, block.n_bytes, np.dtype(np.uint8))


TYPES = {number: _plain(*entry) for number, entry in _PLAIN.items()} | {
    number: _blocks(dtype) for number, dtype in _BLOCKS.items()
}

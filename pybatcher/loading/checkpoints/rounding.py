"""Round f32 to bf16 and to int8 blocks exactly as the engine rounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["to_bf16", "to_int8"]

_GROUP = 32


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to the nearest bf16, ties to even, as the engine does. Returns the bits."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    not_a_number = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(not_a_number, (bits >> 16) | 0x40, rounded).astype(np.uint16)


def to_int8(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return int8 blocks with the numbers nearest to `values`, whose rows are whole blocks."""
    n_rows, n_columns = values.shape
    groups = values.reshape(n_rows, n_columns // _GROUP, _GROUP)
    scales = (np.abs(groups).max(axis=2) / np.float32(127)).astype(np.float16)
    wide = scales.astype(np.float32)[..., None]
    inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide > 0)
    whole = np.clip(np.rint(groups * inverse), -127, 127).astype(np.int8)
    blocks = np.concatenate([scales[..., None].view(np.uint8), whole.view(np.uint8)], axis=2)
    return blocks.reshape(n_rows, -1)

"""The numbers of the engine's blocks, by their formulas: scale (f16), zero point, whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def block_values(blocks: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    """Return (rows, columns) of rows of blocks of int8, int4 or int4_zp."""
    n_bytes = {"int8": 34, "int4": 18, "int4_zp": 20}[dtype]
    rows = blocks.reshape(len(blocks), -1, n_bytes)
    scales = np.ascontiguousarray(rows[..., :2]).view(np.float16).astype(np.float32)
    whole: NDArray[Any]
    if dtype == "int8":
        whole = rows[..., 2:].view(np.int8).astype(np.int32)
    else:
        pairs = rows[..., -16:].astype(np.int32)
        zeros = rows[..., 2:3].astype(np.int32) if dtype == "int4_zp" else 8
        whole = np.concatenate([pairs % 16, pairs // 16], axis=2) - zeros
    values: NDArray[np.float32] = scales * whole.astype(np.float32)
    return values.reshape(len(blocks), -1)

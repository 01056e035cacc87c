"""`q3_k_as_q6_k`: GGUF's Q3_K as blocks of Q6_K with the same numbers.

Both have 16 groups of 16 numbers, each with a whole scale that multiplies one f16: Q3_K's numbers,
-4 to 3, and its scales, -32 to 31, fit Q6_K's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.blocks import BLOCKS

__all__ = ["q3_k_as_q6_k"]

_CHUNK = 2**14  # blocks converted at a time, which bounds the temporary memory
_Bytes = NDArray[np.uint8]


def q3_k_as_q6_k(rows: _Bytes) -> _Bytes:
    """Return rows of Q6_K blocks, (rows, blocks * 210), of rows of Q3_K, (rows, blocks * 110)."""
    blocks = rows.reshape(-1, BLOCKS["q3_k"].n_bytes)
    out = np.empty((len(blocks), BLOCKS["q6_k"].n_bytes), np.uint8)
    for begin in range(0, len(blocks), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        out[part] = _converted(blocks[part])
    return out.reshape(len(rows), -1)


def _converted(blocks: _Bytes) -> _Bytes:
    n = len(blocks)
    high, low, packed, factor = np.split(blocks, (32, 96, 108), axis=1)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    bits = (high[:, None, :] >> shifts) & 1  # (n, 8, 32): a row of 32 numbers each
    pairs = (low.reshape(n, 2, 1, 32) >> (2 * shifts[:4])) & 3
    codes = (pairs.reshape(n, 8, 32) | bits << 2) + 28  # -4 to 3, and Q6_K's 32
    codes = codes.reshape(n, 2, 4, 32)
    nibbles, rest = codes & 15, codes >> 4
    scales = (packed[:, None, :8] >> np.array([[0], [4]], np.uint8)) & 15
    upper = (packed[:, None, 8:] >> (2 * shifts[:4])) & 3
    whole = scales.reshape(n, 16) | upper.reshape(n, 16) << 4
    return np.concatenate(
        [
            (nibbles[:, :, :2] | nibbles[:, :, 2:] << 4).reshape(n, 128),
            (rest << (2 * shifts[:4])).sum(axis=2, dtype=np.uint8).reshape(n, 64),
            whole - np.uint8(32),  # two's complement
            factor,
        ],
        axis=1,
    )

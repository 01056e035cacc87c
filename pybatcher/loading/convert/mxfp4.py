"""MXFP4 weights of safetensors files, which store codes and scales in two tensors of bytes.

`NAME_blocks` is (..., rows, groups, 16): byte j of a group has the codes of elements 2 j and
2 j + 1. `NAME_scales` is (..., rows, groups): the exponents. The engine reads GGUF's blocks: a
block has the exponent, then the codes of elements j and j + 16 in byte j.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelFormatError
from ..checkpoints.blocks import BLOCKS, MXFP4_PARTS
from ..checkpoints.fields import shown_name
from ..checkpoints.tensors import Tensor

__all__ = ["joined_blocks", "with_mxfp4"]

_BLOCKS, _SCALES = "_blocks", "_scales"
_BYTES = BLOCKS[MXFP4_PARTS].n_bytes


def with_mxfp4(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint with each pair of blocks and scales as one tensor.

    The joint tensor has the name of its blocks. Raises ModelFormatError for blocks whose scales
    are missing or do not fit.
    """
    joined = dict(tensors)
    for name, blocks in tensors.items():
        if not name.endswith(_BLOCKS) or blocks.dtype != "U8":
            continue
        name_of_scales = name.removesuffix(_BLOCKS) + _SCALES
        scales = joined.pop(name_of_scales, None)
        if scales is None:
            raise ModelFormatError(
                f"{blocks.source}: tensor {shown_name(name_of_scales)} is missing"
            )
        *outer, n_bytes = blocks.array.shape or (0,)
        if n_bytes != _BYTES or len(outer) < 2:
            raise ModelFormatError(
                f"{blocks.source}: found shape {list(blocks.array.shape)}; "
                f"expected groups of {_BYTES} bytes: [..., rows, groups, {_BYTES}]"
            )
        if scales.dtype != "U8" or scales.array.shape != tuple(outer):
            raise ModelFormatError(
                f"{scales.source}: found {scales.dtype} of shape {list(scales.array.shape)}; "
                f"expected U8 of shape {outer}, one of each group"
            )
        rows = blocks.array.reshape(*outer[:-1], outer[-1] * _BYTES)
        joined[name] = Tensor(rows, MXFP4_PARTS, blocks.source, scales=scales.array)
    return joined


def joined_blocks(tensor: Tensor) -> NDArray[np.uint8]:
    """Return a matrix in parts as the engine's blocks, (rows, groups * 17) bytes."""
    assert tensor.scales is not None
    n_rows, n_groups = tensor.scales.shape
    codes = tensor.array.reshape(n_rows, n_groups, _BYTES)
    first, second = codes[..., : _BYTES // 2], codes[..., _BYTES // 2 :]
    blocks = np.empty((n_rows, n_groups, 1 + _BYTES), np.uint8)
    blocks[..., 0] = tensor.scales
    blocks[..., 1::2] = (first & 15) | (second << 4)
    blocks[..., 2::2] = (first >> 4) | (second & 0xF0)
    return blocks.reshape(n_rows, -1)

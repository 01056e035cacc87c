"""AWQ, as AutoAWQ saves it: numbers are packed along the outputs, in the GEMM kernel's order.

A module has qweight, int32 (inputs, outputs / 8), scales (groups, outputs) and qzeros, int32
(groups, outputs / 8). From the lowest bits, a word holds outputs 0, 2, 4, 6, 1, 3, 5, 7.
https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.fields import Fields
from .grouped_numbers import GroupedNumbers, grouped_numbers
from .parts import Parts, rows_of_packed, to_f32
from .scheme import Scheme, check_names, read_group_size

__all__ = ["read"]

_BITS = 4
_PER_WORD = 32 // _BITS
_PLACES = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])  # the place of each output in a word
_OF_THE_PROGRAM = (
    *("backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse"),
    *("modules_to_not_convert", "sym"),
)


def read(fields: Fields) -> Scheme:
    """Return the scheme of a quantization_config of AWQ. Raises ModelFormatError."""
    read_here = ("bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "format")
    check_names(fields, (*read_here, *_OF_THE_PROGRAM))
    for name in ("bits", "w_bit"):
        fields.refuse_unless(name, _BITS)
    fields.refuse_unless("zero_point", True)
    for name in ("version", "format"):
        fields.refuse_unless(name, "gemm", "GEMM")
    size = read_group_size(fields, "q_group_size" if "q_group_size" in fields else "group_size")

    def matrix(parts: Parts) -> GroupedNumbers:
        return _matrix(parts, size)

    return Scheme(("qweight",), matrix)


def _matrix(parts: Parts, size: int) -> GroupedNumbers:
    packed: NDArray[np.int32] = parts.array("qweight", "I32", None, None)
    n_in, n_out = packed.shape[0], packed.shape[1] * _PER_WORD
    size = n_in if size < 0 else size
    n_groups = -(-n_in // size) if size else 0
    scales = parts.scales("scales", n_groups, n_out)
    packed_zeros = parts.array("qzeros", "I32", n_groups, packed.shape[1])
    return grouped_numbers(
        "AWQ",
        _BITS,
        parts.n_bytes("qweight", "scales", "qzeros"),
        (n_out, n_in),
        np.arange(n_in, dtype=np.int64) // max(size, 1),
        lambda rows: rows_of_packed(packed, rows, _BITS, _PLACES),
        lambda rows: to_f32(scales.array[:, rows].T, scales.dtype),
        lambda rows: rows_of_packed(packed_zeros, rows, _BITS, _PLACES).astype(np.int16),
        scales.dtype == "f16",
    )

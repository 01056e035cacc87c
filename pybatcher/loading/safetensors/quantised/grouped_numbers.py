"""`GroupedNumbers`: integers whose groups have a scale and a zero point.

Element (r, k) is scale[r, g] * (number[r, k] - zero[r, g]), where g is the group of input k. GPTQ,
AWQ and compressed-tensors store such numbers, each with its own packing. If act-order has spread
the groups over the inputs, columns are sorted by group, so that each group is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.blocks import BLOCKS
from ...checkpoints.rounding import to_bf16, to_int8
from ...checkpoints.stored_weight import StoredWeight, chunks_of_rows

__all__ = ["GroupedNumbers", "grouped_numbers"]

_GROUP = 32  # the inputs of one of the engine's blocks
_HALF = _GROUP // 2

_Rows = NDArray[np.int64]
_Number = TypeVar("_Number", np.uint8, np.int8)


@dataclass(frozen=True, slots=True, eq=False)
class GroupedNumbers:
    """A `StoredWeight` of integers, made by `grouped_numbers`.

    numbers: returns the numbers of the given outputs, (outputs, inputs), from 0 to 2**bits - 1.
    scales, zeros: return the scales and zero points of the given outputs, (outputs, groups).
    group_of: the group of each input, (inputs).
    rows: the stored outputs that this matrix has.
    is_exact: True if `own_dtype` represents all numbers exactly.
    by_group: the input of each column after sorting by group, (inputs); None if each block already
        has one group, or if sorting would not achieve that.
    """

    format: str
    bits: int
    n_bytes: int
    numbers: Callable[[_Rows], NDArray[np.uint8]]
    scales: Callable[[_Rows], NDArray[np.float32]]
    zeros: Callable[[_Rows], NDArray[np.int16]]
    group_of: NDArray[np.int64]
    rows: _Rows
    own_dtype: str
    is_exact: bool
    by_group: NDArray[np.int32] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix, (outputs, inputs)."""
        return len(self.rows), len(self.group_of)

    def holds(self, dtype: str) -> bool:
        """Return True if `dtype` represents all numbers of the matrix exactly."""
        if dtype == "f32":
            return True
        lossless = {"int4": ("int4", "int4_zp", "int8"), "int4_zp": ("int4_zp", "int8")}
        return self.is_exact and dtype in lossless.get(self.own_dtype, (self.own_dtype,))

    def takes(self, dtype: str) -> str:
        """Return the dtype that `make` returns for a matrix of `dtype`."""
        has_blocks = self.shape[1] % _GROUP == 0
        if (dtype == "int4" and self.own_dtype != "int4") or (dtype == "int8" and not has_blocks):
            return "f32"
        return dtype

    def order(self, dtype: str) -> NDArray[np.int32] | None:
        """Return the input of each column of `make(dtype)`; None: columns are in input order."""
        has_groups = dtype in ("int4", "int4_zp") or (dtype == "int8" and self.holds("int8"))
        return self.by_group if has_groups else None

    def unordered(self) -> StoredWeight:
        """Return the matrix with its columns in input order; act-order is then rounded to int8."""
        if self.by_group is None:
            return self
        return replace(self, own_dtype="int8", is_exact=False, by_group=None)

    def of_rows(self, rows: _Rows) -> StoredWeight:
        """Return the matrix of the outputs `rows`, in this order."""
        return replace(
            self, rows=self.rows[rows], n_bytes=self.n_bytes * len(rows) // len(self.rows)
        )

    def make(self, dtype: str) -> NDArray[Any]:
        """Return all numbers as `dtype`, columns in the order of `order`."""
        makers: dict[str, tuple[Callable[[_Rows], NDArray[Any]], float, Any]] = {
            "f32": (self._values, 1, np.float32),
            "bf16": (self._bf16, 1, np.uint16),
            "int8": (self._int8, BLOCKS["int8"].n_bytes / _GROUP, np.uint8),
            "int4": (self._int4, BLOCKS["int4"].n_bytes / _GROUP, np.uint8),
            "int4_zp": (self._int4_zp, BLOCKS["int4_zp"].n_bytes / _GROUP, np.uint8),
        }
        function, width, array_dtype = makers[dtype]
        n_rows, n_columns = self.shape
        out = np.empty((n_rows, int(n_columns * width)), array_dtype)
        with np.errstate(all="ignore"):  # the engine refuses a tensor that is not finite
            for part in chunks_of_rows(n_rows, n_columns):
                out[part[0] : part[-1] + 1] = function(self.rows[part])
        return out

    def _values(self, rows: _Rows) -> NDArray[np.float32]:
        differences = self.numbers(rows).astype(np.float32)
        differences -= self.zeros(rows).astype(np.float32)[:, self.group_of]
        differences *= self.scales(rows)[:, self.group_of]
        return differences

    def _bf16(self, rows: _Rows) -> NDArray[np.uint16]:
        return to_bf16(self._values(rows))

    def _columns(self, rows: NDArray[_Number]) -> NDArray[_Number]:
        """Return `rows`, (outputs, inputs), with columns sorted by group if `by_group` is set."""
        return rows if self.by_group is None else np.take(rows, self.by_group, axis=1)

    def _of_blocks(self, of_groups: NDArray[Any]) -> NDArray[Any]:
        """Return the values of `of_groups`, (outputs, groups), for each block of 32 columns."""
        group_of = self.group_of if self.by_group is None else self.group_of[self.by_group]
        return of_groups[:, group_of[::_GROUP]]

    def _scale_bytes(self, rows: _Rows) -> NDArray[np.uint8]:
        halves = self._of_blocks(self.scales(rows)).astype(np.float16)
        return halves[..., None].view(np.uint8)

    def _pairs(self, rows: _Rows) -> NDArray[np.uint8]:
        numbers = self._columns(self.numbers(rows)).reshape(len(rows), -1, _GROUP)
        return numbers[..., :_HALF] | numbers[..., _HALF:] << np.uint8(4)

    def _int4(self, rows: _Rows) -> NDArray[np.uint8]:
        blocks = np.concatenate([self._scale_bytes(rows), self._pairs(rows)], axis=2)
        return blocks.reshape(len(rows), -1)

    def _int4_zp(self, rows: _Rows) -> NDArray[np.uint8]:
        zeros = np.zeros((len(rows), self.shape[1] // _GROUP, 2), np.uint8)
        zeros[..., 0] = self._of_blocks(self.zeros(rows))
        blocks = np.concatenate([self._scale_bytes(rows), zeros, self._pairs(rows)], axis=2)
        return blocks.reshape(len(rows), -1)

    def _int8(self, rows: _Rows) -> NDArray[np.uint8]:
        """Return int8 blocks of the stored numbers if they fit int8, else of the rounded values."""
        if not self.holds("int8"):
            return to_int8(self._values(rows))
        zeros = self.zeros(rows)[:, self.group_of]
        whole = self._columns((self.numbers(rows) - zeros).astype(np.int8))
        whole = whole.reshape(len(rows), -1, _GROUP)
        blocks = np.concatenate([self._scale_bytes(rows), whole.view(np.uint8)], axis=2)
        return blocks.reshape(len(rows), -1)


def grouped_numbers(
    format: str,
    bits: int,
    n_bytes: int,
    shape: tuple[int, int],
    group_of: NDArray[np.int64],
    numbers: Callable[[_Rows], NDArray[np.uint8]],
    scales: Callable[[_Rows], NDArray[np.float32]],
    zeros: Callable[[_Rows], NDArray[np.int16]],
    scales_are_f16: bool,
) -> GroupedNumbers:
    """Return the matrix with the dtype that suits it; reads the zero points, and scales not in f16.

    The dtype of 4-bit numbers is int4 if all zero points are 8, else int4_zp; that of 8-bit numbers
    is int8. If the inputs of a block of 32 have several scales, which is usual for act-order,
    columns are sorted by group. If sorting does not give each block one group, and for 8-bit
    numbers with zero points other than 128, the values are rounded to int8; if rows are not whole
    blocks, to bf16. Scales that f16 cannot represent are rounded to f16.
    """
    rows = np.arange(shape[0])
    middle = 1 << (bits - 1)
    is_symmetric, is_exact = True, True
    for part in chunks_of_rows(shape[0], 1 + int(group_of.max(initial=0))):
        is_symmetric = is_symmetric and bool((zeros(part) == middle).all())
        if not scales_are_f16:
            wide = scales(part)
            with np.errstate(all="ignore"):
                narrow = wide.astype(np.float16).astype(np.float32)
            is_exact = is_exact and bool(np.array_equal(wide, narrow, equal_nan=True))
    columns = None if shape[1] % _GROUP else _by_group(group_of)
    own_dtype, by_group = "int8", None
    if shape[1] % _GROUP:
        own_dtype, is_exact = "bf16", False
    elif columns is None or (bits == 8 and not is_symmetric):
        is_exact = False
    else:
        by_group = None if _in_blocks(group_of) else columns
        if bits == 4:
            own_dtype = "int4" if is_symmetric else "int4_zp"
    return GroupedNumbers(
        *(format, bits, n_bytes, numbers, scales, zeros),
        *(group_of, rows, own_dtype, is_exact, by_group),
    )


def _in_blocks(group_of: NDArray[np.int64]) -> bool:
    """Return True if the inputs of each block share a group."""
    blocks = group_of.reshape(-1, _GROUP)
    return bool((blocks == blocks[:, :1]).all())


def _by_group(group_of: NDArray[np.int64]) -> NDArray[np.int32] | None:
    """Return the inputs sorted by group; None if a block of them would have several groups."""
    inputs = np.argsort(group_of, kind="stable").astype(np.int32)
    return inputs if _in_blocks(group_of[inputs]) else None

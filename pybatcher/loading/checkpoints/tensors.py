"""`Tensor`: a weight in memory; `TensorRule`: derives a weight from a checkpoint's tensor."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelFormatError
from .blocks import BLOCKS
from .stored_weight import StoredWeight

__all__ = ["PLAIN", "Tensor", "TensorRule", "as_f32", "gather"]

PLAIN = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight: a view of a mapped file or of a module's memory.

    array: the values; possibly strided (a transposed view). numpy has no bf16: the bits are
        uint16. A weight in blocks is bytes, (rows, bytes of a row).
    dtype: "f32" | "f16" | "bf16"; for matrices also a block format, a key of BLOCKS.
    source: the file (or module) and the tensor's name in it, for messages.
    mapped: True if the array is part of a mapped file, so that its memory pages can be dropped
        and read again.
    scales: the exponents of the groups of a weight in "mxfp4_parts", (rows, groups) uint8; None
        for other formats.
    stored: a matrix that a quantisation program saved in several tensors; then `dtype` is the
        name of the format, and `array` is empty. None: the array is the weight.
    """

    array: NDArray[Any]
    dtype: str
    source: str
    mapped: bool = False
    scales: NDArray[np.uint8] | None = None
    stored: StoredWeight | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in elements, also for a weight in blocks."""
        if self.stored is not None:
            return self.stored.shape
        block = BLOCKS.get(self.dtype)
        if block is None:
            return self.array.shape
        *outer, n_bytes = self.array.shape
        return (*outer, n_bytes // block.n_bytes * block.n_elements)

    @property
    def n_bytes(self) -> int:
        """Bytes in memory or in the file."""
        return self.array.nbytes if self.stored is None else self.stored.n_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRule:
    """A description of how one canonical tensor derives from a checkpoint's tensor.

    name: the canonical name, which the engine uses; a matrix is (outputs, inputs).
    source: the name in the checkpoint.
    shape: the required shape of the checkpoint's tensor; () becomes (1,).
    transposed: True if the checkpoint has (inputs, outputs), as GPT-2's Conv1D does.
    rows: the range [begin, end) of a tensor's outputs; None = all. row_step: the step of the
        range.
    plus: a number added to the values, in f32: 1 for a norm that multiplies by 1 + weight.
    times: a number that multiplies the values, in f32.
    minus_exp: True if a value x becomes -exp(x), in f32.
    index: the index of the matrix in a tensor that stacks several, such as experts; None: the
        tensor is one matrix.
    otherwise: the rule that replaces this one if `source` is absent and that rule's source is
        present.
    plus_row: a rule whose tensor's first row is added to every row, in f32.
    head_order: for each row of a head in the result, its index in the checkpoint, the same for
        all heads; such a tensor is copied. () = the order does not change.
    head_rows: the rows of a head in the checkpoint; 0: as many as `head_order` has.
    squeezed: True if the checkpoint's second axis, which has one element, is removed.
    reshaped: the shape (outputs, inputs) that the tensor takes, as of a convolution that embeds
        patches; (): that of the checkpoint.
    column_groups: the number of neighbouring columns that are taken apart: column g of each group
        becomes a column of the g-th part of the result; such a tensor is copied. 0 = none.
    value: the element of a tensor of shape (1,) that the checkpoint has in its metadata, under the
        key `source`; None: the checkpoint has a tensor `source`.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    transposed: bool = False
    rows: tuple[int, int] | None = None
    row_step: int = 1
    plus: float = 0.0
    times: float = 1.0
    minus_exp: bool = False
    index: int | None = None
    otherwise: TensorRule | None = None
    plus_row: TensorRule | None = None
    head_order: tuple[int, ...] = ()
    head_rows: int = 0
    squeezed: bool = False
    reshaped: tuple[int, ...] = ()
    column_groups: int = 0
    value: float | None = None

    def among(self, available: Container[str]) -> TensorRule:
        """Return `otherwise` if only its source is in `available`, else this rule."""
        if self.otherwise is None or self.source in available:
            return self
        return self.otherwise if self.otherwise.source in available else self


def gather(
    rules: Iterable[TensorRule],
    available: Mapping[str, Tensor],
    origin: str,
    *,
    reads: bool = True,
) -> dict[str, Tensor]:
    """Return the tensors by canonical name, after checking types and shapes.

    reads: False: the values are not used, so that rows of large matrices are not copied into
        another order.

    Tensors without a rule are ignored. A tensor in float64 is rounded to f32. Raises
    ModelFormatError for a tensor that is missing from `origin`, has an unsupported type, or a shape
    other than the rule's.
    """
    result = {}
    for rule in rules:
        if rule.value is not None:
            number = np.array([rule.value], np.float32)
            result[rule.name] = Tensor(number, "f32", f"{origin}: {rule.source}")
            continue
        rule = rule.among(available)
        tensor = _checked(rule, available, origin)
        if tensor.stored is not None:
            result[rule.name] = _outputs_of(tensor, tensor.stored, rule)
            continue
        array = _part(rule, tensor.array)
        scales = None if tensor.scales is None else _part(rule, tensor.scales)
        if rule.minus_exp:
            with np.errstate(over="ignore"):  # the engine refuses a tensor that is not finite
                made = -np.exp(_as_f32(array, tensor.dtype))
            result[rule.name] = Tensor(made, "f32", tensor.source)
            continue
        if rule.plus or rule.times != 1.0:
            made = _as_f32(array, tensor.dtype) * np.float32(rule.times) + np.float32(rule.plus)
            result[rule.name] = Tensor(made, "f32", tensor.source)
            if rule.head_order:
                result[rule.name] = _reordered(result[rule.name], rule)
            continue
        if rule.plus_row is not None:
            added = _checked(rule.plus_row, available, origin, is_added=True)
            row = _as_f32(added.array[0], added.dtype)
            with np.errstate(all="ignore"):  # the engine refuses a tensor that is not finite
                sums = _as_f32(array, tensor.dtype) + row
            result[rule.name] = Tensor(sums, "f32", tensor.source)
            continue
        if tensor.dtype == "F64":
            with np.errstate(over="ignore"):  # the engine refuses a tensor that is not finite
                tensor = replace(tensor, dtype="f32", mapped=False)
                array = _as_f32(array, "F64")
        is_mapped = tensor.mapped and not rule.column_groups
        result[rule.name] = replace(
            tensor, array=np.asarray(array), scales=scales, mapped=is_mapped
        )
        if rule.head_order:
            reorder = _reordered if reads else _as_many_rows
            result[rule.name] = reorder(result[rule.name], rule)
    return result


def _part(rule: TensorRule, array: NDArray[Any]) -> NDArray[Any]:
    """Return the rule's matrix and rows of a tensor's array."""
    array = array if rule.index is None else array[rule.index]
    array = array[:, 0] if rule.squeezed else np.atleast_1d(array)
    array = array.reshape(rule.reshaped) if rule.reshaped else array
    if rule.column_groups:
        groups = array.reshape(len(array), -1, rule.column_groups)
        return groups.transpose(0, 2, 1).reshape(array.shape)
    array = array.T if rule.transposed else array
    if rule.rows is None:
        return array
    return array[rule.rows[0] : rule.rows[1] : rule.row_step]


def _checked(
    rule: TensorRule, available: Mapping[str, Tensor], origin: str, *, is_added: bool = False
) -> Tensor:
    """Return the rule's tensor. Raises ModelFormatError if it is missing or does not fit.

    is_added: True if the tensor is added to another one, which requires plain numbers.
    """
    tensor = available.get(rule.source)
    if tensor is None:
        raise ModelFormatError(
            f"{origin}: tensor {rule.source} is missing; expected shape {list(rule.shape)}"
        )
    n_dimensions = len(rule.shape) - (rule.index is not None)
    is_sum = bool(rule.plus) or rule.plus_row is not None or is_added
    is_moved = bool(rule.reshaped or rule.column_groups)
    allowed: tuple[str, ...] = (
        PLAIN if n_dimensions <= 1 or is_sum or is_moved else (*PLAIN, *BLOCKS)
    )
    is_matrix = len(rule.shape) > 1 and not is_sum
    if tensor.dtype not in (*allowed, "F64") and (tensor.stored is None or not is_matrix):
        raise ModelFormatError(
            f"{tensor.source}: found dtype {tensor.dtype}; expected one of {', '.join(allowed)}"
        )
    if tensor.shape != rule.shape:
        raise ModelFormatError(
            f"{tensor.source}: found shape {list(tensor.shape)}; "
            f"expected {list(rule.shape)}, by the model's configuration"
        )
    return tensor


def as_f32(tensor: Tensor) -> NDArray[np.float32]:
    """Return a copy of a plain tensor's values. Raises ModelFormatError if one is not finite."""
    values = _as_f32(tensor.array, tensor.dtype)
    if not np.isfinite(values).all():
        raise ModelFormatError(f"{tensor.source} holds a number that is not finite")
    return values


def _outputs_of(tensor: Tensor, stored: StoredWeight, rule: TensorRule) -> Tensor:
    """Return the outputs of a quantised matrix that the rule selects, in its order.

    Only linear modules that multiply all rows may have reordered inputs (act-order): experts,
    routers and embeddings may not.
    """
    if rule.transposed or rule.index is not None or rule.reshaped or rule.column_groups:
        raise ModelFormatError(
            f"{tensor.source}: is quantised by {stored.format}; that is read for matrices "
            "(outputs, inputs) of linear modules only"
        )
    is_product = rule.name.endswith(".weight")
    if not is_product or ".experts." in rule.name or ".router." in rule.name:
        stored = stored.unordered()
    rows = np.arange(*(rule.rows or (0, rule.shape[0])))
    if rule.head_order:
        n_rows = rule.head_rows or len(rule.head_order)
        rows = rows.reshape(-1, n_rows)[:, list(rule.head_order)].reshape(-1)
    if len(rows) == rule.shape[0] and not rule.head_order:
        return replace(tensor, stored=stored)
    of_rows = stored.of_rows(rows)
    return replace(tensor, array=np.empty((len(rows), 0), np.uint8), stored=of_rows)


def _as_f32(array: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    if dtype == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def _as_many_rows(tensor: Tensor, rule: TensorRule) -> Tensor:
    """Return a view with the shape of `_reordered`, whose rows are in the checkpoint's order."""
    n_heads = len(tensor.array) // (rule.head_rows or len(rule.head_order))
    return replace(tensor, array=tensor.array[: n_heads * len(rule.head_order)])


def _reordered(tensor: Tensor, rule: TensorRule) -> Tensor:
    """Return a copy with the rows of each head in the rule's order; blocks are not split."""
    of_row = tensor.array.shape[1:]
    heads = tensor.array.reshape(-1, rule.head_rows or len(rule.head_order), *of_row)
    array = heads[:, list(rule.head_order)].reshape(-1, *of_row)
    return replace(tensor, array=array, mapped=False)

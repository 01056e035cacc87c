"""`Tensor`: weights as they lie in memory; `TensorRule`: where each comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFormatError
from .blocks import BLOCKS

__all__ = ["Tensor", "TensorRule", "gather"]

_PLAIN = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight, never copied: a view of a mapped file or of a module's memory.

    array: the values; possibly strided (a transposed view). bf16 has no numpy
        type, so its bits are uint16. Of weights in blocks the bytes, row by row.
    dtype: "f32" | "f16" | "bf16"; of matrices also a kind of blocks, a key of BLOCKS.
    source: the file (or module) and the tensor's name there, for messages.
    mapped: lies in a file mapped for reading, so that its pages can be dropped
        from memory and read again.
    """

    array: NDArray[Any]
    dtype: str
    source: str
    mapped: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """In elements, also where the array has blocks."""
        block = BLOCKS.get(self.dtype)
        if block is None:
            return self.array.shape
        *outer, n_bytes = self.array.shape
        return (*outer, n_bytes // block.n_bytes * block.n_elements)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRule:
    """How one canonical tensor is cut out of a checkpoint's tensor.

    name: canonical, as the engine takes it; a matrix is (outputs, inputs).
    source: the checkpoint's name.
    shape: that the checkpoint's tensor must have.
    transposed: the checkpoint has (inputs, outputs), as GPT-2's Conv1D does.
    rows: the outputs that are this tensor's, where several share one; None = all.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    transposed: bool = False
    rows: tuple[int, int] | None = None


def gather(
    rules: Iterable[TensorRule], available: Mapping[str, Tensor], origin: str
) -> dict[str, Tensor]:
    """The tensors under their canonical names, type and shape checked. Extra ones are left.

    Raises ModelFormatError for a tensor that is missing from `origin`, has a
    type that is no weight's, or another shape than the configuration demands.
    """
    result = {}
    for rule in rules:
        tensor = available.get(rule.source)
        if tensor is None:
            raise ModelFormatError(
                f"{origin}: tensor {rule.source} is missing; expected shape {list(rule.shape)}"
            )
        allowed = _PLAIN if len(rule.shape) == 1 else (*_PLAIN, *BLOCKS)
        if tensor.dtype not in allowed:
            raise ModelFormatError(
                f"{tensor.source}: found dtype {tensor.dtype}; expected one of {', '.join(allowed)}"
            )
        if tensor.shape != rule.shape:
            raise ModelFormatError(
                f"{tensor.source}: found shape {list(tensor.shape)}; "
                f"expected {list(rule.shape)}, by the model's configuration"
            )
        array = tensor.array.T if rule.transposed else tensor.array
        if rule.rows is not None:
            array = array[rule.rows[0] : rule.rows[1]]
        result[rule.name] = replace(tensor, array=np.asarray(array))
    return result

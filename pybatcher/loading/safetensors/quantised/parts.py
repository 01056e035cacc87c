"""`Parts`: the tensors of one quantised module, checked for presence, type and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import ModelFormatError
from ...checkpoints.fields import shown_name
from ...checkpoints.tensors import Tensor

__all__ = ["Parts", "rows_of_packed", "to_f32"]

_FLOATS = ("f16", "bf16", "f32", "F8_E8M0")
_POWERS = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan).astype(np.float32)  # F8_E8M0


class Parts:
    """The tensors of a checkpoint whose names begin with one module's name and a dot."""

    def __init__(self, module: str, tensors: Mapping[str, Tensor], origin: str) -> None:
        self.module = module
        self._tensors = tensors
        self._origin = origin

    def has(self, name: str) -> bool:
        """Return True if the module has a tensor `name`."""
        return f"{self.module}.{name}" in self._tensors

    def tensor(self, name: str) -> Tensor:
        """Return a tensor of the module. Raises ModelFormatError."""
        tensor = self._tensors.get(f"{self.module}.{name}")
        if tensor is None:
            missing = shown_name(f"{self.module}.{name}")
            raise ModelFormatError(
                f"{self._origin}: tensor {missing} is missing; the module is quantised by its "
                "other tensors"
            )
        return tensor

    def array(self, name: str, dtype: str, *shape: int | None) -> NDArray[Any]:
        """Return the values of tensor `name`, whose type and shape are checked; None: any size."""
        tensor = self.tensor(name)
        if tensor.dtype != dtype:
            raise ModelFormatError(f"{tensor.source}: found dtype {tensor.dtype}; expected {dtype}")
        self._check_shape(tensor, shape)
        return tensor.array

    def scales(self, name: str, *shape: int | None) -> Tensor:
        """Return a tensor of scales: f16, bf16, f32 or powers of two; its shape is checked."""
        tensor = self.tensor(name)
        if tensor.dtype not in _FLOATS:
            raise ModelFormatError(
                f"{tensor.source}: found dtype {tensor.dtype}; expected one of {', '.join(_FLOATS)}"
            )
        self._check_shape(tensor, shape)
        return tensor

    def error(self, name: str, expected: str) -> ModelFormatError:
        """Return a ModelFormatError about the values of tensor `name`."""
        return ModelFormatError(f"{self.tensor(name).source}: expected {expected}")

    def n_bytes(self, *names: str) -> int:
        """Return the total bytes of the named tensors; absent ones count as 0."""
        return sum(self.tensor(name).array.nbytes for name in names if self.has(name))

    def group_of(self, name: str, n_inputs: int, n_groups: int, size: int) -> NDArray[np.int64]:
        """Return the group of each input: from tensor `name`, or if it is absent, by `size`.

        size: the inputs of a group.
        """
        if not self.has(name):
            return np.arange(n_inputs, dtype=np.int64) // size
        found = self.array(name, "I32", n_inputs).astype(np.int64)
        if n_inputs and (found.min() < 0 or found.max() >= n_groups):
            raise self.error(name, f"groups from 0 to {n_groups - 1}")
        return found

    def _check_shape(self, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
        found = tensor.array.shape
        is_other = len(found) != len(shape)
        if is_other or any(b not in (None, a) for a, b in zip(found, shape, strict=True)):
            expected = ", ".join("any" if size is None else str(size) for size in shape)
            raise ModelFormatError(
                f"{tensor.source}: found shape {list(found)}; expected [{expected}], by the "
                "module's other tensors and quantization_config"
            )


def to_f32(array: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Return scales in f32. dtype: the `dtype` of their `Tensor`.

    A byte b of F8_E8M0 means 2 ** (b - 127), except for 255, which is NaN.
    """
    if dtype == "F8_E8M0":
        powers: NDArray[np.float32] = _POWERS[array]
        return powers
    if dtype == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def rows_of_packed(
    packed: NDArray[np.int32], rows: NDArray[np.int64], bits: int, places: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the numbers of the outputs `rows`, (len(rows), inputs), packed along the outputs.

    packed: (inputs, outputs * bits / 32) words of 32 bits. places: for each output of a word, the
    place of its number, counted from the lowest bits.
    """
    per_word = 32 // bits
    words = packed[:, rows // per_word].view(np.uint32)
    words >>= (places[rows % per_word] * bits).astype(np.uint32)
    words &= np.uint32((1 << bits) - 1)
    return np.ascontiguousarray(words.astype(np.uint8).T)

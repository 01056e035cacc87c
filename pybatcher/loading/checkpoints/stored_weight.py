"""`StoredWeight`: a quantised matrix of a checkpoint, which makes arrays that the engine takes."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["StoredWeight", "chunks_of_rows"]

_CHUNK = 2**20  # elements converted at a time


class StoredWeight(Protocol):
    """A matrix (outputs, inputs) as a quantisation program has stored it in several tensors."""

    @property
    def format(self) -> str:
        """The name of the format, for messages."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)"""
        ...

    @property
    def n_bytes(self) -> int:
        """Bytes of its tensors."""
        ...

    @property
    def own_dtype(self) -> str:
        """The dtype of the engine that is nearest to it in numbers and bytes."""
        ...

    def holds(self, dtype: str) -> bool:
        """Return whether `dtype` holds all its numbers exactly."""
        ...

    def takes(self, dtype: str) -> str:
        """Return what `make` makes for a matrix of `dtype`: that dtype, or "f32", to be rounded."""
        ...

    def order(self, dtype: str) -> NDArray[np.int32] | None:
        """Return the input of each column of what `make` makes of `dtype`; None: as inputs lie."""
        ...

    def unordered(self) -> StoredWeight:
        """Return the matrix for a place where columns have to lie as inputs do."""
        ...

    def of_rows(self, rows: NDArray[np.int64]) -> StoredWeight:
        """Return the matrix of these outputs, in this order."""
        ...

    def make(self, dtype: str) -> NDArray[Any]:
        """Return all numbers as `dtype`, one that `takes` returns; bf16 as its bits in uint16.

        Blocks are bytes: (outputs, bytes of a row). Columns are in the order of `order`.
        """
        ...


def chunks_of_rows(n_rows: int, n_columns: int) -> list[NDArray[np.int64]]:
    """Return the numbers of all rows, cut so that temporary memory is bounded."""
    step = max(1, _CHUNK // max(1, n_columns))
    return [np.arange(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]

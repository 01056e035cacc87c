"""`StoredWeight`: a quantised matrix of a checkpoint, convertible to the engine's arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["StoredWeight", "chunks_of_rows"]

_CHUNK = 2**20  # elements converted at a time


class StoredWeight(Protocol):
    """A matrix (outputs, inputs) that a quantisation program stores in several tensors."""

    @property
    def format(self) -> str:
        """The name of the format, for messages."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix, (outputs, inputs)."""
        ...

    @property
    def n_bytes(self) -> int:
        """The bytes of all tensors of the matrix."""
        ...

    @property
    def own_dtype(self) -> str:
        """The engine's dtype that is nearest to the stored format in precision and size."""
        ...

    def holds(self, dtype: str) -> bool:
        """Return True if `dtype` represents all numbers of the matrix exactly."""
        ...

    def takes(self, dtype: str) -> str:
        """Return the dtype that `make` returns for a matrix of `dtype`: the same one, or "f32".

        The engine rounds f32 to `dtype`.
        """
        ...

    def order(self, dtype: str) -> NDArray[np.int32] | None:
        """Return the input of each column of `make(dtype)`; None: columns are in input order."""
        ...

    def unordered(self) -> StoredWeight:
        """Return the matrix with its columns in input order, for uses that require that order."""
        ...

    def of_rows(self, rows: NDArray[np.int64]) -> StoredWeight:
        """Return the matrix of the outputs `rows`, in this order."""
        ...

    def make(self, dtype: str) -> NDArray[Any]:
        """Return all numbers as `dtype`, a value that `takes` returned; bf16 as uint16 bits.

        Blocks are bytes: (outputs, bytes of a row). Columns are in the order of `order`.
        """
        ...


def chunks_of_rows(n_rows: int, n_columns: int) -> list[NDArray[np.int64]]:
    """Return the indices of all rows in chunks that bound the temporary memory of a conversion."""
    step = max(1, _CHUNK // max(1, n_columns))
    return [np.arange(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]

from __future__ import annotations

import numpy as np
import pytest

from pybatcher.loading.checkpoints.stored_weight import chunks_of_rows


@pytest.mark.parametrize(("n_rows", "n_columns"), [(1, 5), (7, 2**19), (3, 2**21), (5000, 4096)])
def test_chunks_cover_all_rows_in_order(n_rows: int, n_columns: int) -> None:
    chunks = chunks_of_rows(n_rows, n_columns)
    np.testing.assert_array_equal(np.concatenate(chunks), np.arange(n_rows))
    assert all(len(chunk) == 1 or len(chunk) * n_columns <= 2**20 for chunk in chunks)
    assert chunks_of_rows(0, 4) == []

"""Scores and embeddings as values."""

from __future__ import annotations

import numpy as np

from pybatcher import Embedding, Score


def test_scores_compare_by_value() -> None:
    one, same = Score(-1.5, (-1.0, -0.5), (3, 4)), Score(-1.5, (-1.0, -0.5), (3, 4))
    assert one == same
    assert len({one, same, Score(-1.5, (-1.0, -0.5), (3, 5))}) == 2


def test_embeddings_compare_by_identity_as_their_arrays_have_no_truth() -> None:
    vector = np.array([1.0, 2.0], dtype=np.float32)
    one, other = Embedding(vector, 2, 0), Embedding(vector.copy(), 2, 0)
    assert one == one
    assert one != other
    assert len({one, other}) == 2

"""Scores and embeddings as values."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from pybatcher import Embedding, Score
from pybatcher.calls.scores import Answer
from pybatcher.params.embedding_defaults import EmbeddingDefaults


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


def test_an_embedding_has_length_1_where_that_is_asked() -> None:
    answer = Answer((), array("f", [3.0, -4.0]), 7)
    plain = answer.embedding(9, EmbeddingDefaults())
    normalised = answer.embedding(9, EmbeddingDefaults(normalised=True))
    assert plain.vector.tolist() == [3.0, -4.0]
    assert normalised.vector.tolist() == pytest.approx([0.6, -0.8])
    assert normalised.vector.dtype == np.float32
    assert (normalised.prompt_tokens, normalised.cached_tokens) == (9, 7)
    nothing = Answer((), array("f", [0.0, 0.0]), 0)
    asked = EmbeddingDefaults(normalised=True)
    assert nothing.embedding(1, asked).vector.tolist() == [0.0, 0.0]

"""Scores and embeddings as values."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from pybatcher import Embedding, EngineFailedError, Score
from pybatcher.calls.scores import Answer
from pybatcher.params.embedding_defaults import EmbeddingDefaults
from pybatcher.params.embedding_head import DenseLayer, EmbeddingHead


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


def test_a_score_is_shown_by_its_sum() -> None:
    assert repr(Score(-1.5, (-1.0, -0.5), (3, 4))) == "<Score -1.5, 2 tokens>"


def test_an_embedding_is_shown_by_its_beginning() -> None:
    whole = Embedding(np.float32([0.5, -2.0]), 3, 0)
    assert repr(whole) == "<Embedding [0.5, -2], 2 numbers, 3 tokens>"
    long = Embedding(np.full(4096, 1 / 3, np.float32), 3, 0)
    assert repr(long) == "<Embedding [0.3333, 0.3333, 0.3333, ...], 4096 numbers, 3 tokens>"


def test_dense_layers_that_overflow_are_an_error_and_no_vector_of_nans() -> None:
    layer = DenseLayer(np.full((2, 2), 3e38, np.float32))
    answer = Answer((), array("f", [3.0, 4.0]), 0)
    for layers in ([layer], [layer, layer]):
        head = EmbeddingHead(layers)
        with pytest.raises(EngineFailedError, match="dense layers make an embedding that is not"):
            answer.embedding(1, EmbeddingDefaults(normalised=True, head=head))

from __future__ import annotations

from pybatcher.params.embedding_defaults import EmbeddingDefaults


def test_those_of_a_model_that_says_nothing() -> None:
    assert EmbeddingDefaults.of_model(causal=True) == EmbeddingDefaults()
    assert EmbeddingDefaults() == EmbeddingDefaults("last", False, None)
    assert EmbeddingDefaults.of_model(causal=False) == EmbeddingDefaults("mean", False, None)

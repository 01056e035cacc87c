"""Vectors of MiniLM, compared with those of sentence-transformers."""

from __future__ import annotations

import numpy as np

from pybatcher import Batcher
from tests.real.conftest import FOLDER, SENTENCES, Reference
from tests.real.download import MINILM

CLOSE = 2e-5


async def test_vectors_are_those_of_sentence_transformers(
    reference: Reference, figures: list[str]
) -> None:
    async with Batcher(FOLDER / MINILM, dtype="f32") as batcher:
        embedded = await batcher.embed(SENTENCES)
        alone = [(await batcher.embed([sentence]))[0] for sentence in SENTENCES]
    vectors = np.array([each.vector for each in embedded])
    expected = np.array(reference[MINILM]["vectors"])
    difference = float(np.abs(vectors - expected).max())
    figures.append(f"{MINILM}: vectors differ by {difference:.1e} at most")
    assert difference <= CLOSE
    for one, vector in zip(alone, vectors, strict=True):
        assert np.array_equal(one.vector, vector)


async def test_near_sentences_have_near_vectors() -> None:
    texts = ["A man plays the guitar.", "Someone is making music.", "The stock market fell today."]
    async with Batcher(FOLDER / MINILM) as batcher:
        music, more_music, money = (each.vector for each in await batcher.embed(texts))
    assert music @ more_music > 0.5 > 0.2 > music @ money

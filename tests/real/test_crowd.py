"""A request has the same tokens and log-probabilities alone and among sixteen others."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from pybatcher import Batcher, Completion
from tests.real.conftest import FOLDER, SENTENCES
from tests.real.download import GEMMA, MINILM, SMOLLM2

PROMPT = "The old lighthouse keeper opened the door and"
N_OTHERS = 16


@pytest.mark.parametrize("name", [SMOLLM2, GEMMA])
async def test_tokens_and_log_probabilities_are_the_same_in_a_crowd(name: str, text: str) -> None:
    async with Batcher(FOLDER / name, n_ctx=4096) as batcher:

        async def ask(temperature: float) -> Completion:
            return await batcher.generate(
                PROMPT, max_tokens=24, temperature=temperature, seed=7, logprobs=3
            )

        greedy, sampled = await ask(0.0), await ask(0.9)
        words = text.split()
        others = [
            batcher.generate(
                " ".join(words[i * 20 : i * 24 + 4]),
                max_tokens=5 + 2 * i,
                temperature=0.25 * (i % 5),
                seed=i,
                top_p=1 - 0.02 * i,
            )
            for i in range(N_OTHERS)
        ]
        in_crowd = await asyncio.gather(ask(0.0), ask(0.9), *others)
    assert len(in_crowd) == 2 + N_OTHERS
    assert greedy.token_ids != sampled.token_ids
    for alone, crowded in zip((greedy, sampled), in_crowd, strict=False):
        assert crowded.token_ids == alone.token_ids
        assert crowded.logprobs == alone.logprobs


async def test_vectors_are_the_same_in_a_crowd(text: str) -> None:
    async with Batcher(FOLDER / MINILM) as batcher:
        (alone,) = await batcher.embed(SENTENCES[:1])
        others = [" ".join(text.split()[: 9 * i + 1]) for i in range(N_OTHERS)]
        crowded, *_ = await asyncio.gather(*(batcher.embed([t]) for t in (SENTENCES[0], *others)))
    assert np.array_equal(crowded[0].vector, alone.vector)

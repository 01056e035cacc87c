"""Tokens and log-probabilities, compared with transformers' on the dequantised weights."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import numpy as np
import pytest

from pybatcher import Batcher
from tests.real.conftest import FOLDER, N_GREEDY, PROMPTS, Reference
from tests.real.download import GEMMA, SMOLLM2

MODELS = [SMOLLM2, GEMMA]

CLOSE = 1e-3  # log-probabilities in f32 differ by no more, in nats

# The most that the perplexity of the text may be, as a multiple of transformers' in f32. "auto"
# keeps the formats of the file: Q4_1, and of Q4_K_M the Q4_K, Q5_0, Q6_K and Q8_0.
MOST = {"f32": 1.0001, "bf16": 1.005, "auto": 1.01, "int8": 1.01, "int4": 1.7}

# A dtype that rounds the weights of the file warns.
pytestmark = pytest.mark.filterwarnings("ignore:.*matrices are rounded:UserWarning")


def perplexity(logprobs: Any) -> float:
    return math.exp(-float(np.mean(logprobs)))


async def text_logprobs(batcher: Batcher, text: str) -> tuple[float, ...]:
    scored = await batcher.generate(text, max_tokens=0, prompt_logprobs=True)
    assert scored.prompt_logprobs is not None
    first, *others = scored.prompt_logprobs
    assert first is None
    return tuple(value for value in others if value is not None)


@pytest.mark.parametrize("name", MODELS)
async def test_f32_gives_the_tokens_and_probabilities_of_transformers(
    name: str, text: str, reference: Reference
) -> None:
    async with Batcher(FOLDER / name, dtype="f32", kv_dtype="f32") as batcher:
        asked = (
            batcher.generate(prompt, max_tokens=N_GREEDY, temperature=0, ignore_eos=True)
            for prompt in PROMPTS[name]
        )
        answers = await asyncio.gather(*asked)
        logprobs = await text_logprobs(batcher, text)
    expected = reference[name]
    assert [list(answer.token_ids) for answer in answers] == expected["greedy"]
    np.testing.assert_allclose(logprobs, expected["logprobs"], rtol=0, atol=CLOSE)


@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("name", MODELS)
async def test_the_perplexity_is_near_that_of_f32(
    name: str, dtype: str, text: str, reference: Reference, figures: list[str]
) -> None:
    begin = time.perf_counter()
    async with Batcher(FOLDER / name, dtype=dtype) as batcher:
        opened = time.perf_counter()
        logprobs = await text_logprobs(batcher, text)
    scored = time.perf_counter()
    expected = reference[name]["logprobs"]
    ratio = perplexity(logprobs) / perplexity(expected)
    figures.append(
        f"{name} {dtype}: perplexity {perplexity(logprobs):.3f}, {ratio:.4f} of transformers' f32; "
        f"log-probabilities differ by {np.abs(np.subtract(logprobs, expected)).mean():.4f} on "
        f"average; opened in {opened - begin:.1f} s, {len(expected)} tokens in "
        f"{scored - opened:.1f} s"
    )
    assert 2 - MOST[dtype] < ratio < MOST[dtype]

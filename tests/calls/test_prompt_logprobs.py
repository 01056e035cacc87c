"""`generate(prompt_logprobs=True)`: the log-probabilities of the prompt's own tokens."""

from __future__ import annotations

import math

import pytest

from pybatcher import Batcher, BlockingBatcher, InvalidRequestError
from pybatcher.testing import fake_batcher

PROMPT = "Once upon a time"


async def test_they_are_those_of_a_score_and_change_no_token() -> None:
    async with fake_batcher() as batcher:
        tokens = await batcher.tokenize(PROMPT)
        (score,) = await batcher.score(tokens[:1], [tokens[1:]])
        alone = await batcher.generate(PROMPT, max_tokens=5)
        assert alone.prompt_logprobs is None
        both = await batcher.generate(PROMPT, max_tokens=5, prompt_logprobs=True)
        assert both.prompt_logprobs == (None, *score.token_logprobs)
        assert both.token_ids == alone.token_ids
        several = await batcher.generate([PROMPT, "x"], max_tokens=2, prompt_logprobs=True)
        assert several[0].prompt_logprobs == both.prompt_logprobs


async def test_without_an_output_nothing_is_drawn() -> None:
    async with Batcher(n_threads=1) as batcher:
        completion = await batcher.generate(PROMPT, max_tokens=0, prompt_logprobs=True)
        assert batcher.statistics().generated_tokens == 0
        assert (completion.text, completion.token_ids) == ("", ())
        assert completion.finish_reason == "length"
        assert completion.prompt_logprobs is not None
        first, *others = completion.prompt_logprobs
        assert first is None
        assert len(others) == completion.usage.prompt_tokens - 1
        assert all(logprob is not None and -math.inf < logprob <= 0 for logprob in others)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_logprobs": 1}, "prompt_logprobs is 1"),
        ({"prompt_logprobs": True, "output": [65]}, "no output yet"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"prompt_logprobs": True, "max_tokens": 0, "top_p": 7}, "top_p is 7"),
    ],
)
async def test_what_does_not_fit_is_refused(options: dict[str, object], message: str) -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match=message):
            await batcher.generate(PROMPT, **options)


async def test_a_prompt_of_one_token_and_a_failure() -> None:
    async with fake_batcher() as batcher:
        one = await batcher.generate([65], max_tokens=0, prompt_logprobs=True)
        assert one.prompt_logprobs == (None,)
        with pytest.raises(InvalidRequestError):
            await batcher.generate(PROMPT, prompt_logprobs=True, priority=10**9)
        assert batcher.statistics().running == batcher.statistics().queued == 0


def test_without_asyncio() -> None:
    with BlockingBatcher.over(fake_batcher()) as batcher:
        assert batcher.generate(PROMPT, max_tokens=0, prompt_logprobs=True).prompt_logprobs
        assert repr(batcher) == "<BlockingBatcher over <Batcher of an open module: ready>>"
        assert repr(batcher.generate("x", max_tokens=2)).startswith("<Completion ")

"""`generate(prompt_logprobs=...)`: log-probabilities of a prompt's tokens, and likelier ones."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pybatcher import Batcher, BlockingBatcher, InvalidRequestError, RequestTooLongError
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


async def test_likelier_tokens_at_each_place() -> None:
    async with fake_batcher() as batcher:
        tokens = await batcher.tokenize(PROMPT)
        both = await batcher.generate(PROMPT, max_tokens=5, prompt_logprobs=3, logprobs=3)
        (score,) = await batcher.score(tokens[:1], [tokens[1:]], top_logprobs=3)
        assert both.prompt_logprobs == (None, *score.token_logprobs)
        assert both.prompt_top_logprobs == ((), *score.top_logprobs)
        assert [len(top) for top in both.prompt_top_logprobs] == [0] + [3] * (len(tokens) - 1)
        for n, top in enumerate(both.prompt_top_logprobs[1:], start=1):
            drawn = await batcher.generate(tokens[:n], max_tokens=1, logprobs=3)
            assert drawn.logprobs is not None
            assert top == drawn.logprobs[0].top
        for asked in (True, 0):
            plain = await batcher.generate(PROMPT, max_tokens=0, prompt_logprobs=asked)
            assert plain.prompt_logprobs == both.prompt_logprobs
            assert plain.prompt_top_logprobs is None
        for asked in (False, None):
            nothing: Any = {"prompt_logprobs": asked}
            assert (await batcher.generate(PROMPT, **nothing)).prompt_logprobs is None


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
        ({"prompt_logprobs": 33}, "prompt_logprobs is 33; it must be a whole number from 0 to 32"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1"),
        ({"prompt_logprobs": "all"}, "prompt_logprobs is 'all'"),
        ({"prompt_logprobs": 2, "output": [65]}, "no output yet"),
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
        one = await batcher.generate([65], max_tokens=0, prompt_logprobs=2)
        assert (one.prompt_logprobs, one.prompt_top_logprobs) == ((None,), ((),))
        with pytest.raises(InvalidRequestError):
            await batcher.generate(PROMPT, prompt_logprobs=True, priority=10**9)
        assert batcher.statistics().running == batcher.statistics().queued == 0


def test_without_asyncio() -> None:
    with BlockingBatcher.over(fake_batcher()) as batcher:
        assert batcher.generate(PROMPT, max_tokens=0, prompt_logprobs=1).prompt_top_logprobs
        assert repr(batcher) == "<BlockingBatcher over <Batcher of an open module: ready>>"
        assert repr(batcher.generate("x", max_tokens=2)).startswith("<Completion ")


@pytest.mark.parametrize("n_tokens", [3000, 10_000])
async def test_all_tokens_of_a_prompt_that_is_too_long_are_counted(n_tokens: int) -> None:
    """Beyond the 8,192 that are read at most, and below."""
    async with fake_batcher(n_ctx=2048) as batcher:
        for prompt in ([65] * n_tokens, "A" * n_tokens):
            ids = await batcher.tokenize(prompt)
            for n_drawn in (0, 1):
                with pytest.raises(
                    RequestTooLongError,
                    match=f"^prompt has {len(ids)} tok.*; a sequence has 2048 p",
                ) as raised:
                    await batcher.generate(prompt, max_tokens=n_drawn, prompt_logprobs=True)
                assert raised.value.field == "prompt"
        with pytest.raises(RequestTooLongError, match="prompt has 3000 tokens"):
            await batcher.score([65] * 2000, [[65] * 1000])

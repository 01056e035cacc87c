"""What prompts may be, what is refused, and that reading them never holds up the loop."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from pybatcher import (
    InvalidRequestError,
    RequestTooLongError,
)
from pybatcher.testing import FakeEngine, byte_tokenizer, fake_batcher

PROMPT = "Once upon a time"


@pytest.mark.parametrize(
    "prompt",
    [(65, 66, 67), range(65, 68), np.arange(65, 68), list(np.arange(65, 68, dtype=np.uint8))],
    ids=["tuple", "range", "array", "numpy ints"],
)
async def test_prompts_of_token_ids(prompt: object) -> None:
    async with fake_batcher() as batcher:
        expected = await batcher.generate([65, 66, 67], max_tokens=5)
        completion = await batcher.generate(prompt, max_tokens=5)
    assert completion.token_ids == expected.token_ids
    assert completion.usage.prompt_tokens == 3


BAD_PROMPTS = [
    ("", "at least one character"),
    ([], "at least one token id"),
    (np.array([], dtype=int), "at least one token id"),
    ("a lone \ud800 surrogate", "surrogate"),
    (b"bytes", "of type bytes"),
    (bytearray(b"bytes"), "of type bytearray"),
    (None, "of type NoneType"),
    (7, "of type int"),
    ({"a": 1}, "of type dict"),
    ({1, 2}, "of type set"),
    ([1, 2.0], r"prompt\[1\] is 2.0, of type float"),
    (np.array([1.0]), r"prompt\[0\] is 1.0, of type float"),
    (np.array([[1, 2]]), r"prompt\[0\] is \[1, 2\], of type list"),
    ([65, "b"], r"prompt\[1\] is 'b', of type str"),
    ([1, True], r"prompt\[1\] is True, of type bool"),
    ([1, np.bool_(True)], r"prompt\[1\] is .*True.*, of type bool"),
    ([1, None], r"prompt\[1\] is None"),
    ([5, -1], r"prompt\[1\] is -1; .* from 0 to 257"),
    ([5, 258], r"prompt\[1\] is 258; .* from 0 to 257"),
    ([2**70], r"prompt\[0\] is 1180591620717411303424"),
]


@pytest.mark.parametrize(("prompt", "message"), BAD_PROMPTS)
async def test_bad_prompts(prompt: object, message: str) -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match=message):
            await batcher.generate(prompt)
        with pytest.raises(InvalidRequestError, match=message):
            async for _ in batcher.stream(prompt):
                pass
        assert (await batcher.generate(PROMPT, max_tokens=1)).token_ids
        assert batcher.statistics().submitted == 1


async def test_a_prompt_that_is_too_long() -> None:
    async with fake_batcher(n_ctx=64) as batcher:
        with pytest.raises(RequestTooLongError, match="has 64 tokens; a sequence has 64 positions"):
            await batcher.generate([1] * 64)
        completion = await batcher.generate([1] * 60, max_tokens=50, ignore_eos=True)
        assert len(completion.token_ids) == 4
        assert batcher.statistics().rejected == 1


async def test_a_tokenizer_that_knows_more_tokens_than_the_model() -> None:
    async with fake_batcher(FakeEngine(vocab_size=230)) as batcher:
        with pytest.raises(InvalidRequestError, match="token 256, which the tokenizer knows and"):
            await batcher.generate("short")
        with pytest.raises(InvalidRequestError, match="token ids are from 0 to 229"):
            await batcher.generate("long " * 1000)
        completion = await batcher.generate([65, 66], max_tokens=5)
        assert completion.finish_reason == "length"
        assert batcher.statistics().failed == 0


async def test_a_long_text_is_tokenised_on_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = byte_tokenizer()
    threads: list[threading.Thread] = []
    encode = tokenizer.encode

    def recording(text: str, **options: bool) -> list[int]:
        threads.append(threading.current_thread())
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", recording)
    async with fake_batcher(tokenizer=tokenizer) as batcher:
        await batcher.generate("short", max_tokens=1)
        await batcher.generate("long " * 1000, max_tokens=1)
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


async def test_many_token_ids_are_checked_with_pauses() -> None:
    async with fake_batcher(n_ctx=262_144) as batcher:
        pauses = 0
        task = asyncio.create_task(batcher.generate([1] * 100_000 + [999], max_tokens=1))
        while not task.done():
            await asyncio.sleep(0)
            pauses += 1
        with pytest.raises(InvalidRequestError, match=r"prompt\[100000\] is 999"):
            await task
        assert pauses > 100_000 // 8192

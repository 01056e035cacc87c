"""`tokenize` and `detokenize`: the token ids that a batcher would go on from, and their text."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from pybatcher import Batcher, BatcherClosedError, InvalidRequestError, RequestTooLongError
from pybatcher.testing import FakeEngine, byte_tokenizer, fake_batcher

PROMPT = "Once upon a time, a caf\u00e9 \u20ac"
SYSTEM = "You are kind. "
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"
MESSAGES = [{"role": "user", "content": "What is 7 plus 5?"}]


@pytest.mark.parametrize("system_prompt", [None, SYSTEM])
async def test_the_tokens_of_a_text_are_its_prompt(system_prompt: str | None) -> None:
    async with fake_batcher(system_prompt=system_prompt) as batcher:
        tokens = await batcher.tokenize(PROMPT)
        assert tokens == tuple(byte_tokenizer().encode((system_prompt or "") + PROMPT))
        of_text = await batcher.generate(PROMPT, max_tokens=9)
        of_tokens = await batcher.generate(tokens, max_tokens=9)
        assert of_tokens.token_ids == of_text.token_ids
        assert of_tokens.usage.prompt_tokens == of_text.usage.prompt_tokens == len(tokens)
        assert await batcher.detokenize(tokens) == "<bos>" + (system_prompt or "") + PROMPT


@pytest.mark.parametrize("system_prompt", [None, SYSTEM])
async def test_the_tokens_of_messages_are_a_chats_prompt(system_prompt: str | None) -> None:
    async with fake_batcher(chat_template=TEMPLATE, system_prompt=system_prompt) as batcher:
        tokens = await batcher.tokenize(MESSAGES)
        assert tokens == await batcher.tokenize(tuple(MESSAGES))
        of_chat = await batcher.chat(MESSAGES, max_tokens=9)
        of_tokens = await batcher.generate(tokens, max_tokens=9)
        assert of_tokens.token_ids == of_chat.token_ids
        assert of_tokens.usage.prompt_tokens == of_chat.usage.prompt_tokens == len(tokens)
        begin = "" if system_prompt is None else f"<system>{system_prompt}</>"
        text = f"{begin}<user>{MESSAGES[0]['content']}</><assistant>"
        assert await batcher.detokenize(tokens) == text


async def test_with_the_shipped_model() -> None:
    async with Batcher(system_prompt=SYSTEM) as batcher:
        for content, call in ((PROMPT, batcher.generate), (MESSAGES, batcher.chat)):
            tokens = await batcher.tokenize(content)
            expected = await call(content, max_tokens=12)  # type: ignore[operator]
            answer = await batcher.generate(tokens, max_tokens=12)
            assert answer.token_ids == expected.token_ids
            assert answer.text == expected.text
            assert expected.text in await batcher.detokenize(tokens + expected.token_ids)


async def test_token_ids_are_taken_as_they_are() -> None:
    async with fake_batcher(system_prompt=SYSTEM) as batcher:
        assert await batcher.tokenize([5, 6, 7]) == (5, 6, 7)
        assert await batcher.tokenize(np.array([5, 6, 7])) == (5, 6, 7)
        tokens = byte_tokenizer().encode("caf\u00e9", add_special_tokens=False)
        assert await batcher.detokenize(np.array(tokens)) == "caf\u00e9"
        assert await batcher.detokenize(tokens[:-1]) == "caf\ufffd"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "prompt is ''; it must have at least one character"),
        ([], r"prompt is \[\]; it must have at least one token id"),
        ([258], r"prompt\[0\] is 258; token ids of this model are from 0 to 257"),
        (5, "prompt is 5, of type int; it must be a text or a sequence of token ids"),
        ("\ud800", "lone surrogate"),
        ([{"role": "user"}, 5], "messages"),
    ],
)
async def test_what_cannot_be_tokenized(content: Any, message: str) -> None:
    async with fake_batcher(chat_template=TEMPLATE) as batcher:
        with pytest.raises(InvalidRequestError, match=message):
            await batcher.tokenize(content)


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ("text", "token_ids is 'text', of type str; it must be a sequence of token ids"),
        ([], r"token_ids is \[\]; it must have at least one token id"),
        ([1, "a"], r"token_ids\[1\] is 'a', of type str; a token id is a whole number"),
        ([-1], r"token_ids\[0\] is -1"),
        (None, "token_ids is None, of type NoneType"),
    ],
)
async def test_what_cannot_be_detokenized(token_ids: Any, message: str) -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match=message):
            await batcher.detokenize(token_ids)


async def test_bytes_of_tokens() -> None:
    async with fake_batcher() as batcher:
        text = "caf\u00e9 \U0001f98a"
        tokens = await batcher.tokenize(text, add_special_tokens=False)
        assert b"".join(await batcher.token_bytes(tokens)).decode() == text
        assert await batcher.token_bytes(tokens * 300) == await batcher.token_bytes(tokens) * 300
        for odd, message in (
            ("a", "token_ids is 'a'"),
            ([[1]], r"token_ids\[0\] is \[1\]"),
            ([], r"token_ids is \[\]"),
            ([2, -1], r"token_ids\[1\] is -1"),
        ):
            with pytest.raises(InvalidRequestError, match=message):
                await batcher.token_bytes(odd)  # type: ignore[arg-type]


async def test_lists_of_token_ids_are_detokenized_together() -> None:
    async with fake_batcher() as batcher:
        tokens = [
            list(await batcher.tokenize(text)) for text in ("café", "Once upon", "long " * 500)
        ]
        expected = [await batcher.detokenize(one) for one in tokens]
        assert await batcher.detokenize(tokens) == expected
        assert await batcher.detokenize(tokens * 50) == expected * 50
        for odd, message in (
            ([[1], "a"], r"token_ids\[1\] is 'a'"),
            ([[1], []], r"token_ids\[1\] is \[\]"),
            ([[1], [2, -1]], r"token_ids\[1\]\[1\] is -1"),
        ):
            with pytest.raises(InvalidRequestError, match=message):
                await batcher.detokenize(odd)  # type: ignore[call-overload]


@pytest.mark.parametrize("n_ctx", [4096, 2**18])
async def test_the_ids_of_one_call_are_bounded_by_the_context_or_2_17(n_ctx: int) -> None:
    most = max(n_ctx, 2**17)
    too_many, several = [1] * (most + 1), [[1] * (most // 2 + 1)] * 2
    async with fake_batcher(n_ctx=n_ctx) as batcher:
        assert len(await batcher.detokenize([66] * most)) == most
        for asked, n_ids in (
            (batcher.detokenize(too_many), most + 1),
            (batcher.detokenize(np.array(too_many)), most + 1),
            (batcher.detokenize(several), most + 2),
            (batcher.detokenize([[1]] * (most + 1)), most + 1),
            (batcher.token_bytes(too_many), most + 1),
        ):
            message = f"token_ids has {n_ids} token ids; one call takes at most {most}: divide"
            with pytest.raises(RequestTooLongError, match=message) as raised:
                await asked
            assert raised.value.field == "token_ids"
        message = rf"texts\[1\] has {most + 1} token ids; (one call takes at|a sequence has)"
        with pytest.raises(RequestTooLongError, match=message):
            await batcher.embed(["a", too_many], truncate=True)


async def test_no_step_is_taken_for_it_and_a_long_text_is_on_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, engine = byte_tokenizer(), FakeEngine()
    threads: list[threading.Thread] = []
    for name in ("encode", "decode"):
        whole = getattr(tokenizer, name)

        def recording(*args: Any, whole: Any = whole, **options: Any) -> Any:
            threads.append(threading.current_thread())
            return whole(*args, **options)

        monkeypatch.setattr(tokenizer, name, recording)
    async with fake_batcher(engine, tokenizer=tokenizer) as batcher:
        tokens = await batcher.tokenize("long " * 1000)
        await batcher.detokenize(tokens)
        assert batcher.statistics().submitted == 0
    assert len(threads) == 2
    assert threading.main_thread() not in threads
    assert engine.plans == []


async def test_before_the_start() -> None:
    batcher = fake_batcher()
    with pytest.raises(BatcherClosedError, match="not started"):
        await batcher.tokenize(PROMPT)
    with pytest.raises(BatcherClosedError, match="not started"):
        await batcher.detokenize([1])

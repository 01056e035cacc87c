"""The service of a batcher: the same calls, and what it says of itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import Any

import pytest
from batcher_helpers import PATIENCE

from pybatcher import Batcher, BatcherClosedError, DeadlineExceededError, InvalidRequestError
from pybatcher.calls.call import Call
from pybatcher.calls.questions import (
    AddPrefix,
    Describe,
    Detokenize,
    EmbedTexts,
    ListPrefixes,
    ReadHealth,
    ReadStatistics,
    Reload,
    RemovePrefix,
    ScoreContinuations,
    Tokenize,
)
from pybatcher.calls.reply import Reply
from pybatcher.serving.structured_outputs import StructuredOutputs
from pybatcher.testing import fake_batcher


async def test_a_call_is_what_the_batcher_would_have_made_of_it() -> None:
    async with fake_batcher() as batcher:
        expected = await batcher.generate("hi", max_tokens=4, ignore_eos=True)
        service, reply = batcher._running_service(), Reply(streams=True)
        asked: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True}
        call = Call(
            content="hi", params=None, sampling=asked, priority=0, timeout=None, namespace=None
        )
        await service.submit(call, reply)
        while not reply.ended:
            await reply.wait()
        assert reply.result().token_ids == expected.token_ids
        assert "".join(map(str, reply.pieces)) == expected.text


async def test_the_other_calls_are_the_batchers_own() -> None:
    async with fake_batcher(max_prefixes=2) as batcher:
        service = batcher._running_service()
        score = ScoreContinuations(prompt="a", continuations=["b"])
        assert await service.ask(score) == await batcher.score("a", ["b"])
        (mine,) = await service.ask(EmbedTexts(texts=["a"]))
        (its,) = await batcher.embed(["a"])
        assert mine.vector.tobytes() == its.vector.tobytes()
        tokens = await service.ask(Tokenize(content="abc"))
        assert tokens == await batcher.tokenize("abc")
        assert await service.ask(Detokenize(token_ids=tokens)) == await batcher.detokenize(tokens)
        added = await service.ask(AddPrefix(prefix="a" * 40, name="a"))
        assert await service.ask(ListPrefixes()) == batcher.prefixes() == (added,)
        await service.ask(RemovePrefix(name="a"))
        assert await service.ask(ListPrefixes()) == ()
        assert await service.ask(ReadStatistics()) == batcher.statistics()
        assert await service.ask(ReadHealth()) == batcher.health()


async def test_a_cancelled_call_is_the_batchers_to_end() -> None:
    async with fake_batcher() as batcher:
        service, reply = batcher._running_service(), Reply(streams=True)
        asked: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}
        call = Call(
            content="hi", params=None, sampling=asked, priority=0, timeout=None, namespace=None
        )
        ids = await service.submit(call, reply)
        await reply.wait()
        service.cancel(ids)
    assert batcher.statistics().cancelled == 1


async def test_handlers_hear_of_the_batchers_events() -> None:
    heard: list[object] = []
    async with fake_batcher() as batcher:
        detach = batcher._running_service().attach(heard.append)
        await batcher.generate("hi", max_tokens=1)
        n_heard = len(heard)
        assert n_heard >= 2
        detach()
        await batcher.generate("hi", max_tokens=1)
        assert len(heard) == n_heard


async def test_more_samples_than_can_ever_wait_are_a_bad_request() -> None:
    async with fake_batcher(max_queue_requests=3) as batcher:
        with pytest.raises(InvalidRequestError, match=r"n is 4, .* max_queue_requests = 3"):
            await batcher.generate("hi", n=4, max_tokens=1)
        assert len((await batcher.generate("hi", n=3, max_tokens=1)).choices) == 3


async def test_it_says_what_it_is() -> None:
    async with fake_batcher(n_ctx=640, n_parallel=3, max_queue_requests=7) as batcher:
        told = await batcher._running_service().ask(Describe())
    assert told["version"] == metadata.version("pybatcher-engine")
    assert told["model"] == "fake"
    assert told["limits"] == {
        "max_sequence_length": 640,
        "n_ctx": 640,
        "n_parallel": 3,
        "max_prefixes": 16,
        "max_queue_requests": 7,
        "max_queue_tokens": batcher._scheduler_config.max_queue_tokens,
    }


async def test_what_it_cannot_do_is_refused() -> None:
    batcher = fake_batcher()
    with pytest.raises(BatcherClosedError, match="was not started"):
        batcher._running_service()
    async with batcher:
        with pytest.raises(InvalidRequestError, match="a reload is not for this process"):
            await batcher._running_service().ask(Reload({}))


@pytest.mark.parametrize("asked", [{"regex": "a{1000000000}"}, {"regex": "a"}])
async def test_the_deadline_of_a_call_holds_while_its_form_is_compiled(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    ended: list[bool] = []

    async def matcher(*_: object) -> Any:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.append(True)

    monkeypatch.setattr(StructuredOutputs, "matcher", matcher)
    async with fake_batcher() as batcher:
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError, match=r"not read within 0\.1 s \(timeout\)"):
            await batcher.generate("hi", timeout=0.1, **asked)
        assert time.monotonic() - began < PATIENCE / 2
        assert ended == [True]
        assert len((await batcher.generate("hi", timeout=1e300, max_tokens=2)).token_ids) == 2


MESSAGES = [{"role": "user", "content": "Hi"}]
CALLS: dict[str, Callable[[Batcher, str | None], Awaitable[object]]] = {
    "generate": lambda b, tenant: b.generate("Hi", max_tokens=4, tenant=tenant),
    "stream": lambda b, tenant: drained(b.stream("Hi", max_tokens=4, tenant=tenant)),
    "chat": lambda b, tenant: b.chat(MESSAGES, max_tokens=4, tenant=tenant),
    "stream_chat": lambda b, tenant: drained(b.stream_chat(MESSAGES, max_tokens=4, tenant=tenant)),
    "score": lambda b, tenant: b.score("Hi", ["a"], tenant=tenant),
    "embed": lambda b, tenant: b.embed(["Hi"], tenant=tenant),
    "threadsafe": lambda b, tenant: asyncio.wrap_future(
        b.threadsafe.generate("Hi", max_tokens=4, tenant=tenant)
    ),
}


async def drained(stream: Any) -> list[Any]:
    return [piece async for piece in stream]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_tenant_with_hundreds_of_requests_does_not_delay_anothers(
    call: Callable[[Batcher, str | None], Awaitable[object]],
) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    async with fake_batcher(n_parallel=1, chat_template=template) as batcher:
        loud = [
            asyncio.ensure_future(batcher.generate("Me", max_tokens=4, tenant="loud"))
            for _ in range(40)
        ]
        await asyncio.wait(loud, return_when=asyncio.FIRST_COMPLETED)
        await call(batcher, "quiet")
        n_done = sum(task.done() for task in loud)
        assert n_done < 20
        await call(batcher, "loud")
        assert sum(task.done() for task in loud) == 40, "it waits for its own requests"
        await asyncio.gather(*loud)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("tenant", [5, b"x", ["x"], True, 1.5, "\ud800", "x" * 1025, object()])
async def test_a_tenant_of_another_type_is_refused(
    call: Callable[[Batcher, Any], Awaitable[object]], tenant: object
) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    async with fake_batcher(chat_template=template) as batcher:
        with pytest.raises(InvalidRequestError, match="tenant") as refused:
            await call(batcher, tenant)
        assert refused.value.field == "tenant"
        for good in (None, "", "x" * 1024, "Zoë", "a\nb", "\0"):
            await call(batcher, good)

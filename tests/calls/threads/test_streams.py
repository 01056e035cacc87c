"""Streams that are read outside their batcher's loop: by a thread, or in another loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import pytest
from batcher_helpers import PATIENCE, until

from pybatcher import BatcherClosedError, BlockingBatcher, Completion, InvalidRequestError, Piece
from pybatcher.calls.threads.streams import ThreadsafeStream
from pybatcher.testing import FakeEngine, fake_batcher

pytestmark = pytest.mark.slow

PROMPT = "Once upon a time"
LONG = {"max_tokens": 8000, "ignore_eos": True}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
MESSAGES = [{"role": "user", "content": PROMPT}]


def blocking(engine: FakeEngine | None = None, **options: object) -> BlockingBatcher:
    return BlockingBatcher.over(fake_batcher(engine, **options))


def until_it_is_so(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_a_stream_that_is_left_is_cancelled(how: str) -> None:
    with blocking(FakeEngine(step_delay=0.001)) as batcher:
        stream = batcher.stream(PROMPT, **LONG)
        next(stream)
        if how == "close":
            stream.close()
            with pytest.raises(StopIteration):
                next(stream)
        elif how == "with":
            with stream:
                next(stream)
        del stream
        gc.collect()
        until_it_is_so(lambda: batcher.statistics().cancelled == 1)


def test_a_stream_keeps_its_batcher_alive() -> None:
    engine = FakeEngine()
    batcher = blocking(engine)
    batcher.start()
    stream = batcher.stream(PROMPT, max_tokens=50, ignore_eos=True)
    next(stream)
    del batcher
    gc.collect()
    assert len(list(stream)) == 49
    del stream
    gc.collect()
    until_it_is_so(lambda: engine.closed)


async def test_another_loop_reads_a_stream() -> None:
    async with fake_batcher(chat_template=TEMPLATE) as batcher:

        async def elsewhere() -> tuple[Any, ...]:
            remote = batcher.threadsafe
            stream = remote.stream(PROMPT, max_tokens=9)
            assert stream.completion is None
            pieces = [piece async for piece in stream]
            async with remote.stream_chat(MESSAGES, max_tokens=9) as chat:
                assert (await anext(chat)).token_ids
            return pieces, stream.completion

        async def elsewhere_at_once() -> Completion:
            return await batcher.threadsafe.stream(PROMPT, max_tokens=9)

        pieces, streamed = await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        at_once = await asyncio.to_thread(lambda: asyncio.run(elsewhere_at_once()))
        assert at_once.token_ids == streamed.token_ids
        here = await batcher.generate(PROMPT, max_tokens=9)
        assert streamed.token_ids == here.token_ids
        assert "".join(map(str, pieces)) == here.text
        await until(lambda: batcher.statistics().running == 0)


async def test_a_plain_thread_reads_a_stream() -> None:
    async with fake_batcher(chat_template=TEMPLATE) as batcher:

        def elsewhere() -> tuple[list[Piece], Any, list[Piece]]:
            with batcher.threadsafe.stream(PROMPT, max_tokens=9) as stream:
                pieces = list(stream)
            with pytest.raises(StopIteration):
                next(stream)
            return pieces, stream.completion, list(batcher.threadsafe.stream_chat(MESSAGES))

        pieces, streamed, chat = await asyncio.to_thread(elsewhere)
        here = await batcher.generate(PROMPT, max_tokens=9)
        assert streamed.token_ids == here.token_ids
        assert "".join(map(str, pieces)) == here.text
        assert "".join(map(str, chat)) == (await batcher.chat(MESSAGES)).text


async def test_on_the_batchers_own_loop_a_for_does_not_wait_for_itself() -> None:
    async with fake_batcher() as batcher:
        stream = batcher.threadsafe.stream(PROMPT, max_tokens=9)
        with pytest.raises(InvalidRequestError, match="await the batcher's own method"):
            next(stream)
        stream.close()
        stream = batcher.threadsafe.stream(PROMPT, max_tokens=9)
        assert [piece async for piece in stream], "an `async for` may be there"
        await until(lambda: batcher.statistics().running == 0)


@pytest.mark.parametrize("reader", ["loop", "thread"])
@pytest.mark.parametrize("how", ["close", "with", "drop"])
async def test_left_elsewhere_it_is_cancelled(reader: str, how: str) -> None:
    engine = FakeEngine(step_delay=0.001)

    async def leave_in_loop(stream: ThreadsafeStream) -> None:
        if how == "with":
            async with stream:
                await anext(stream)
            return
        await anext(stream)
        if how == "close":
            await stream.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    def leave_in_thread(stream: ThreadsafeStream) -> None:
        if how == "with":
            with stream:
                next(stream)
            return
        next(stream)
        if how == "close":
            stream.close()
            with pytest.raises(StopIteration):
                next(stream)

    async with fake_batcher(engine) as batcher:

        def elsewhere() -> None:
            stream = batcher.threadsafe.stream(PROMPT, **LONG)
            if reader == "thread":
                leave_in_thread(stream)
            else:
                asyncio.run(leave_in_loop(stream))

        await asyncio.to_thread(elsewhere)
        gc.collect()
        await until(lambda: batcher.statistics().cancelled == 1)
        await until(lambda: engine.used_sequences == 0)


async def test_errors_come_with_the_first_piece() -> None:
    async with fake_batcher() as batcher:
        stream = batcher.threadsafe.stream(PROMPT, max_tokens=0)
        with pytest.raises(InvalidRequestError, match="max_tokens is 0"):
            await asyncio.to_thread(next, stream)


async def test_before_the_start_and_after_the_end_there_is_none() -> None:
    batcher = fake_batcher()
    with pytest.raises(BatcherClosedError, match="not started"):
        batcher.threadsafe.stream(PROMPT)
    async with batcher:
        stream = batcher.threadsafe.stream(PROMPT, **LONG)
    with pytest.raises(BatcherClosedError, match="is closed"):
        next(stream)
    closing = threading.Thread(target=stream.close)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()

"""The helpers for web frameworks; `tests/examples/test_fastapi_app.py` has them under a server."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from batcher_helpers import until

from pybatcher import BlockingBatcher, InvalidRequestError, errors
from pybatcher.testing import FakeEngine, fake_batcher
from pybatcher.web import (
    ClientGoneError,
    blocking_text_stream,
    http_headers,
    http_status,
    text_stream,
    unless_gone,
)

PROMPT = "Once upon a time"
LONG: dict[str, Any] = {"max_tokens": 8000, "ignore_eos": True}
GONE = {"type": "http.disconnect"}


def request(*messages: dict[str, Any]) -> Any:
    """One whose client sends these messages, and then nothing for ever."""
    left = list(messages)

    async def receive() -> dict[str, Any]:
        if left:
            return left.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    return SimpleNamespace(receive=receive)


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (errors.InvalidRequestError("stop is 3"), 400, {}),
        (errors.RequestTooLongError("prompt has 9 tokens"), 400, {}),
        (errors.ModelFormatError("chat_template"), 400, {}),
        (errors.QueueFullError("full", 1.25), 429, {"retry-after": "2"}),
        (errors.QueueFullError("full", -1.0), 429, {"retry-after": "0"}),
        (errors.DeadlineExceededError("late"), 504, {}),
        (errors.BatcherClosedError("closed"), 503, {}),
        (errors.ConnectionLostError("lost"), 503, {}),
        (errors.KvCacheFullError("full"), 503, {}),
        (errors.NoFreeSequenceError("full"), 503, {}),
        (errors.EngineFailedError("broken"), 500, {}),
        (errors.EngineError("broken"), 500, {}),
        (ClientGoneError(), 499, {}),
        (KeyError("x"), 500, {}),
    ],
)
def test_the_status_of_an_error(error: BaseException, status: int, headers: dict[str, str]) -> None:
    assert (http_status(error), http_headers(error)) == (status, headers)


async def test_work_ends_with_its_client() -> None:
    body = {"type": "http.request", "body": b"", "more_body": False}
    assert await unless_gone(request(), asyncio.sleep(0, "done")) == "done"
    assert await unless_gone(request(body), asyncio.sleep(0, "done")) == "done"
    working = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(ClientGoneError, match="disconnected"):
        await unless_gone(request(body, GONE), working)
    await asyncio.sleep(0)
    assert working.cancelled()

    async def failing() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="own"):
        await unless_gone(request(), failing())


async def test_a_client_that_is_gone_cancels_the_request() -> None:
    async with fake_batcher(FakeEngine(step_delay=0.001)) as batcher:
        has_gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await has_gone.wait()
            return GONE

        asked = SimpleNamespace(receive=receive)
        asking = asyncio.create_task(unless_gone(asked, batcher.generate(PROMPT, **LONG)))
        await until(lambda: batcher.statistics().running == 1)
        has_gone.set()
        with pytest.raises(ClientGoneError):
            await asking
        await until(lambda: batcher.statistics().cancelled == 1)


async def test_a_stream_of_texts() -> None:
    async with fake_batcher() as batcher:
        whole = await batcher.generate(PROMPT, max_tokens=20)
        texts = [one async for one in await text_stream(batcher.stream(PROMPT, max_tokens=20))]
        assert "".join(texts) == whole.text
        assert len(texts) > 1
        assert all(texts)
        with pytest.raises(InvalidRequestError, match="max_tokens is 0"):
            await text_stream(batcher.stream(PROMPT, max_tokens=0))


async def _close(texts: Any) -> None:
    await texts.aclose()


async def _drop(texts: Any) -> None:
    """Nothing is left to be done: the caller has dropped it."""


@pytest.mark.parametrize("leave", [_close, _drop])
@pytest.mark.parametrize("n_read", [0, 3])
async def test_a_stream_of_texts_that_is_left_cancels_its_request(
    leave: Callable[[Any], Awaitable[None]], n_read: int
) -> None:
    async with fake_batcher(FakeEngine(step_delay=0.001)) as batcher:
        stream = batcher.stream(PROMPT, **LONG)
        texts = await text_stream(stream)
        for _ in range(n_read):
            assert await anext(texts)
        await leave(texts)
        if leave is _drop or not n_read:  # a generator that was never started closes nothing
            del texts, stream
            gc.collect()
        await until(lambda: batcher.statistics().cancelled == 1)


@pytest.mark.parametrize("n_read", [0, 3])
def test_a_stream_of_texts_without_asyncio(n_read: int) -> None:
    with BlockingBatcher.over(fake_batcher(FakeEngine(step_delay=0.001))) as batcher:
        whole = batcher.generate(PROMPT, max_tokens=20)
        texts = list(blocking_text_stream(batcher.stream(PROMPT, max_tokens=20)))
        assert "".join(texts) == whole.text
        assert all(texts)
        with pytest.raises(InvalidRequestError, match="max_tokens is 0"):
            blocking_text_stream(batcher.stream(PROMPT, max_tokens=0))
        left = blocking_text_stream(batcher.stream(PROMPT, **LONG))
        for _ in range(n_read):
            assert next(left)
        del left
        gc.collect()
        batcher.generate(PROMPT, max_tokens=20)
    assert batcher.statistics().cancelled == 1

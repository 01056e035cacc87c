"""Maps that are read outside their batcher's loop, and the other composed calls of threads."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from batcher_helpers import PATIENCE, until

from pybatcher import (
    BatcherClosedError,
    BlockingBatcher,
    InvalidRequestError,
    MapResult,
    ThreadsafeResultStream,
)
from pybatcher.scheduling import StepPlan
from pybatcher.testing import FakeEngine, fake_batcher

PROMPT = "Once upon a time"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
MESSAGES = [{"role": "user", "content": PROMPT}]
LONG: dict[str, Any] = {"max_tokens": 8000, "ignore_eos": True}
ITEMS: list[Any] = [{"prompt": "a", "max_tokens": 1, "ignore_eos": False}, "b", "c", "d"]


def blocking(engine: FakeEngine | None = None, **options: object) -> BlockingBatcher:
    return BlockingBatcher.over(fake_batcher(engine, **options))


def until_it_is_so(condition: Any) -> None:
    given_up = threading.Event()
    for _ in range(int(PATIENCE * 1000)):
        if condition():
            return
        given_up.wait(0.001)
    raise AssertionError


def texts(results: Any) -> dict[int, str]:
    return {one.index: one.result().text for one in results}


def test_a_thread_reads_a_map() -> None:
    taken_on: set[threading.Thread] = set()
    told: list[tuple[int, int | None]] = []

    def items() -> Iterator[str]:
        for i in range(20):
            taken_on.add(threading.current_thread())
            yield f"{PROMPT} {i}"

    def progress(n_results: int, n_items: int | None) -> None:
        taken_on.add(threading.current_thread())
        told.append((n_results, n_items))

    batcher = blocking()
    made = texts(batcher.map(items(), max_tokens=5, at_once=4, progress=progress))
    together = batcher.generate(list(items()), max_tokens=5)
    assert [made[i] for i in range(20)] == [one.text for one in together]
    assert taken_on == {threading.current_thread()}
    assert told == [(n, None) for n in range(1, 21)]
    errors = [one.error for one in batcher.map(["a", "", "b"], max_tokens=2)]
    assert len([one for one in errors if isinstance(one, InvalidRequestError)]) == 1
    with pytest.raises(InvalidRequestError, match="prompt is ''"):
        list(batcher.map([""], errors="raise"))
    with pytest.raises(InvalidRequestError, match="at_once is 0"):
        batcher.map(["a"], at_once=0)
    results = batcher.map(["a", "b"], max_tokens=2)
    batcher.close()
    with pytest.raises(BatcherClosedError):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


@pytest.mark.parametrize("how", ["close", "with", "break", "drop"])
def test_a_map_that_is_left_is_cancelled(how: str) -> None:
    with blocking(FakeEngine(step_delay=0.001)) as batcher:
        results = batcher.map(ITEMS, at_once=2, **LONG)
        if how == "with":
            with results:
                assert next(results).index == 0
        else:
            for _ in results:
                break
        if how == "close":
            results.close()
            with pytest.raises(StopIteration):
                next(results)
        del results
        gc.collect()
        until_it_is_so(lambda: batcher.statistics().cancelled == 1)
        assert batcher.statistics().submitted == 2


def test_ctrl_c_cancels_what_is_in_flight() -> None:
    engine = FakeEngine(step_delay=0.001)
    ident = threading.main_thread().ident
    assert ident is not None

    def interrupt(plan: StepPlan) -> None:
        if len(engine.plans) == 10:
            signal.pthread_kill(ident, signal.SIGINT)

    engine.before_step = interrupt
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with blocking(engine) as batcher:
            results = batcher.map(["a", "b"], **LONG)
            with pytest.raises(KeyboardInterrupt):
                next(results)
            until_it_is_so(lambda: batcher.statistics().cancelled == 2)
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_map_keeps_its_batcher_alive() -> None:
    engine = FakeEngine()
    results = blocking(engine).map(["a", "b", "c"], max_tokens=2, at_once=1)
    gc.collect()
    assert len(list(results)) == 3
    del results
    gc.collect()
    until_it_is_so(lambda: engine.closed)


async def test_a_thread_and_another_loop_read_maps() -> None:
    async with fake_batcher() as batcher:
        expected = [one.text for one in await batcher.generate(["a", "b", "c"], max_tokens=5)]

        def begin() -> ThreadsafeResultStream[str]:
            return batcher.threadsafe.map(["a", "b", "c"], max_tokens=5, at_once=2)

        async def elsewhere() -> dict[int, str]:
            async with begin() as results:
                return texts([one async for one in results])

        for read in (lambda: texts(begin()), lambda: asyncio.run(elsewhere())):
            found = await asyncio.to_thread(read)
            assert [found[i] for i in range(3)] == expected
        with pytest.raises(InvalidRequestError, match="await the batcher's own method"):
            next(begin())
        here: list[MapResult[str]] = [one async for one in begin()]
        assert len(here) == 3


@pytest.mark.parametrize("how", ["cancel", "close", "drop"])
async def test_a_map_that_is_left_elsewhere_is_cancelled(how: str) -> None:
    async with fake_batcher(FakeEngine(step_delay=0.001)) as batcher:
        results = batcher.threadsafe.map(ITEMS, at_once=2, **LONG)
        assert (await anext(results)).index == 0
        if how == "cancel":
            reading = asyncio.ensure_future(anext(results))
            await until(lambda: batcher.statistics().submitted == 3)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            del reading
        elif how == "close":
            await results.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(results)
        del results
        gc.collect()
        counts = batcher.statistics
        await until(lambda: counts().cancelled == counts().submitted - 1)


def where() -> str:
    """Tell the thread."""
    return threading.current_thread().name


async def where_async() -> str:
    """Tell the thread."""
    await asyncio.sleep(0)
    return threading.current_thread().name


class Calls:
    """A stand-in for `chat`, that calls both tools and then answers."""

    def __init__(self) -> None:
        self.n_turns = 0

    async def __call__(self, messages: Any, params: Any = None, **options: Any) -> Any:
        from scripted_chats import turn_of

        from pybatcher import ToolCall

        self.n_turns += 1
        if self.n_turns % 2 == 0:
            return turn_of("done")
        calls = [ToolCall(name, name, {}, "") for name in ("where", "where_async")]
        return turn_of("", *calls)


def test_tools_run_on_the_thread_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    with blocking() as batcher:
        monkeypatch.setattr(batcher._batcher, "chat", Calls())
        answer, messages = batcher.act(MESSAGES, [where, where_async])
        assert answer.text == "done"
        results = [one["content"] for one in messages if one["role"] == "tool"]
        assert results == [threading.current_thread().name, "pybatcher-loop"]
        with pytest.raises(InvalidRequestError, match="max_turns is 0"):
            batcher.act(MESSAGES, [where], max_turns=0)


async def test_tools_of_other_threads_run_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_batcher() as batcher:
        monkeypatch.setattr(batcher, "chat", Calls())
        future = batcher.threadsafe.act(MESSAGES, [where, where_async])
        _, messages = await asyncio.wrap_future(future)
        results = [one["content"] for one in messages if one["role"] == "tool"]
        assert results == ["pybatcher-tool", threading.current_thread().name]


async def test_chats_are_trimmed_from_other_threads() -> None:
    chat = [{"role": "user", "content": "x" * 50}] * 5
    async with fake_batcher(FakeEngine(n_ctx=128), chat_template=TEMPLATE) as batcher:
        remote = await asyncio.wrap_future(batcher.threadsafe.trim(chat, 20))
        assert remote == await batcher.trim(chat, 20) == chat[:2]
    with blocking(FakeEngine(n_ctx=128), chat_template=TEMPLATE) as other:
        assert other.trim(chat, 20) == remote


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_is_told_so() -> None:
    with blocking() as batcher:
        results = batcher.map(["a"], max_tokens=1)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                next(results)
            except BatcherClosedError as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            assert "is a fork of it" in pipe.read()
        os.waitpid(child, 0)
        assert next(results).index == 0

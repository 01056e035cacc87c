"""`map`: order, limits, errors, memory, and the ends of a map."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from batcher_helpers import until

from pybatcher import (
    Batcher,
    BatcherClosedError,
    Completion,
    DeadlineExceededError,
    EngineFailedError,
    Health,
    InvalidRequestError,
    MapResult,
    PybatcherError,
    QueueFullError,
    RequestTooLongError,
    ResultStream,
    SamplingParams,
)
from pybatcher.calls.composed.composed_calls import ComposedCalls
from pybatcher.testing import FakeClock, FakeEngine, fake_batcher

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": PROMPT}]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
LONG: dict[str, Any] = {"max_tokens": 8000, "ignore_eos": True}


class Held(ComposedCalls):
    """A batcher whose calls end when a test says so."""

    def __init__(self) -> None:
        self.calls: dict[Any, asyncio.Future[Any]] = {}
        self.begun: list[Any] = []
        self.cancelled: list[Any] = []
        self.most_at_once = 0
        self.state = Health("ready", "")

    async def generate(self, prompt: Any, params: Any = None, **options: Any) -> Any:
        self.begun.append(prompt)
        self.calls[prompt] = asyncio.get_running_loop().create_future()
        self.most_at_once = max(self.most_at_once, len(self.calls))
        try:
            return await self.calls[prompt]
        except asyncio.CancelledError:
            self.cancelled.append(prompt)
            raise
        finally:
            del self.calls[prompt]

    async def health(self) -> Health:
        return self.state


async def test_results_come_as_they_are_done_with_their_items() -> None:
    batcher = Held()
    results = batcher.map(iter("abc"), at_once=3)
    first = asyncio.create_task(anext(results))
    await until(lambda: len(batcher.calls) == 3)
    batcher.calls["b"].set_result("of b")
    assert await first == MapResult(1, "b", "of b")  # type: ignore[arg-type]
    batcher.calls["c"].set_exception(InvalidRequestError("not c"))
    second = await anext(results)
    assert (second.index, second.item, second.completion) == (2, "c", None)
    with pytest.raises(InvalidRequestError, match="not c"):
        second.result()
    batcher.calls["a"].set_result("of a")
    assert (await anext(results)).result() == "of a"
    with pytest.raises(StopAsyncIteration):
        await anext(results)
    with pytest.raises(StopAsyncIteration):
        await anext(results)


@pytest.mark.parametrize(("at_once", "most"), [(1, 1), (3, 3), (50, 10)])
async def test_the_limit_is_reached_and_never_exceeded(at_once: int, most: int) -> None:
    batcher = Held()
    n_results = 0

    async def answer() -> None:
        while True:
            for future in batcher.calls.values():
                if not future.done():
                    future.set_result("")
            await asyncio.sleep(0)

    answering = asyncio.create_task(answer())
    async for _ in batcher.map(range(10, 20), at_once=at_once):
        n_results += 1
        assert len(batcher.begun) <= n_results + at_once
    answering.cancel()
    assert n_results == 10
    assert batcher.most_at_once == most


async def test_items_of_every_kind() -> None:
    async with fake_batcher(chat_template=TEMPLATE) as batcher:
        tokens = await batcher.tokenize(PROMPT)
        items: list[Any] = [
            PROMPT,
            tokens,
            list(tokens),
            MESSAGES,
            tuple(MESSAGES),
            {"prompt": PROMPT, "max_tokens": 3, "id": object()},
            {"messages": MESSAGES, "params": SamplingParams(max_tokens=4), "max_tokens": 2},
            {"prompt": PROMPT, "params": None},
        ]
        made = [one async for one in batcher.map(items, SamplingParams(max_tokens=9), seed=1)]
        found = {one.index: one.result() for one in made}
        generated = await batcher.generate(PROMPT, max_tokens=9, seed=1)
        chatted = await batcher.chat(MESSAGES, max_tokens=9, seed=1)
        for index in (0, 1, 2):
            assert found[index].token_ids == generated.token_ids
        for index in (3, 4):
            assert found[index].token_ids == chatted.token_ids
        assert [len(found[index].token_ids) for index in (5, 6)] == [3, 2]
        assert found[7].token_ids == (await batcher.generate(PROMPT, seed=1)).token_ids
        assert all(one.item is items[one.index] for one in made)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (["a", "b"], "several prompts are several items"),
        ({"prompt": ["a", "b"]}, "several prompts are several items"),
        ({"role": "user", "content": "hi"}, "item is .*it must be a prompt, messages, or a dict"),
        ({"prompt": "a", "messages": MESSAGES}, "item is .*it must be a prompt"),
        ({"prompt": "a", "max_token": 3}, "unknown option 'max_token'"),
        ({"prompt": "a", "self": 3}, "unknown option 'self'"),
        ({"prompt": "a", 5: 3}, "unknown option 5"),
        ({"prompt": "a", "timeout": 0}, "timeout is 0"),
        ({"prompt": "a", "params": 5}, "params is 5"),
        ({"messages": "a"}, "messages is 'a'"),
        ({}, r"item is \{\}; it must be a prompt"),
        ("", "prompt is ''"),
        ([], r"prompt is \[\]"),
        (None, "prompt is None"),
        (5, "prompt is 5"),
    ],
)
async def test_an_item_that_is_wrong_harms_no_other(item: Any, message: str) -> None:
    async with fake_batcher(chat_template=TEMPLATE) as batcher:
        results = [one async for one in batcher.map(["a", item, "b"], max_tokens=2)]
        assert sorted(one.index for one in results) == [0, 1, 2]
        (wrong,) = (one for one in results if one.error is not None)
        assert (wrong.index, type(wrong.error)) == (1, InvalidRequestError)
        with pytest.raises(InvalidRequestError, match=message):
            wrong.result()


@pytest.mark.parametrize(
    ("arguments", "message", "field"),
    [
        ({"at_once": 0}, "at_once is 0; it must be a whole number from 1 to 65536", "at_once"),
        ({"at_once": 2.5}, "at_once is 2.5", "at_once"),
        ({"at_once": True}, "at_once is True", "at_once"),
        ({"at_once": None}, "at_once is None", "at_once"),
        ({"errors": "ignore"}, "errors is 'ignore'; it must be one of 'return', 'raise'", "errors"),
        ({"errors": None}, "errors is None", "errors"),
        ({"progress": True}, "progress is True; it must be a function, or None", "progress"),
        ({"items": "abc"}, "items is 'abc'; it must be an iterable", "items"),
        ({"items": b"abc"}, "items is b'abc'", "items"),
        ({"items": {"prompt": "a"}}, "items is {'prompt': 'a'}", "items"),
        ({"items": 5}, "items is 5", "items"),
        ({"items": None}, "items is None", "items"),
        ({"max_token": 5}, "unknown option 'max_token'", "max_token"),
    ],
)
async def test_wrong_arguments_are_refused_at_once(
    arguments: dict[str, Any], message: str, field: str
) -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match=message) as raised:
            batcher.map(**{"items": ["a"], **arguments})
    assert raised.value.field == field


async def test_an_asynchronous_iterable_is_refused() -> None:
    async def items() -> Any:
        yield "a"

    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match="must be an iterable"):
            batcher.map(items())  # type: ignore[type-var]


async def test_errors_of_items_may_end_the_map() -> None:
    async with fake_batcher(FakeEngine(step_delay=0.001, n_ctx=512)) as batcher:
        items = [{"prompt": "a", **LONG, "max_tokens": 400}, "b" * 1000]
        with pytest.raises(RequestTooLongError) as raised:
            await _read_all(batcher.map(items, errors="raise"))
        assert "raised for the item with index 1" in raised.value.__notes__
        await until(lambda: batcher.statistics().cancelled == 1)


async def test_an_error_of_the_items_ends_the_map() -> None:
    def items() -> Iterator[Any]:
        yield {"prompt": "a", "max_tokens": 1}
        yield "b"
        raise OSError("the disk is gone")

    async with fake_batcher(FakeEngine(step_delay=0.001)) as batcher:
        results = batcher.map(items(), at_once=2, **LONG)
        assert (await anext(results)).index == 0
        with pytest.raises(OSError, match="the disk is gone"):
            await anext(results)
        await until(lambda: batcher.statistics().cancelled == 1)


async def test_the_progress_is_told() -> None:
    async with fake_batcher() as batcher:
        told: list[tuple[int, int | None]] = []
        async for one in batcher.map(
            ["a", "", "b"], max_tokens=2, progress=lambda n, total: told.append((n, total))
        ):
            assert len(told) > 0, one
        assert told == [(1, 3), (2, 3), (3, 3)]
        told.clear()
        async for _ in batcher.map(iter("ab"), max_tokens=2, progress=lambda *n: told.append(n)):
            pass
        assert told == [(1, None), (2, None)]


async def test_nothing_of_nothing() -> None:
    async with fake_batcher() as batcher:
        assert [one async for one in batcher.map([])] == []


class Instant(ComposedCalls):
    """A batcher that answers at once."""

    async def generate(self, prompt: Any, params: Any = None, **options: Any) -> Any:
        await asyncio.sleep(0)
        return prompt


async def test_thousands_of_items_take_no_more_memory_than_a_few() -> None:
    made = 0

    def items(n: int) -> Iterator[str]:
        nonlocal made
        for i in range(n):
            made += 1
            yield f"{i}" * 100

    async def read(n: int) -> int:
        nonlocal made
        made = n_read = 0
        tracemalloc.reset_peak()
        async for _ in Instant().map(items(n), at_once=16):
            n_read += 1
            assert made <= n_read + 16
        assert n_read == n
        return tracemalloc.get_traced_memory()[1]

    tracemalloc.start()
    try:
        few = await read(100)
        many = await read(5_000)
    finally:
        tracemalloc.stop()
    assert many < few + 200_000


async def _read_all(results: ResultStream) -> None:
    async for _ in results:
        pass


async def _cancel(reading: asyncio.Task[None]) -> None:
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@pytest.mark.parametrize("how", ["cancel", "aclose", "with", "break", "drop"])
async def test_who_leaves_cancels_what_is_in_flight(how: str) -> None:
    async with fake_batcher(FakeEngine(step_delay=0.001), n_parallel=4) as batcher:
        items = [{"prompt": "a", "max_tokens": 1}, *({"prompt": f"{i}", **LONG} for i in range(9))]
        results = batcher.map(items, at_once=4)

        if how == "cancel":
            reading = asyncio.create_task(_read_all(results))
            await until(lambda: batcher.statistics().running == 4)
            await until(lambda: batcher.statistics().completed == 1)
            await until(lambda: batcher.statistics().submitted == 5)
            await _cancel(reading)
            del reading
        elif how == "with":
            async with results:
                await anext(results)
        else:
            async for _ in results:
                break
            if how == "aclose":
                await results.aclose()
        if how in ("cancel", "aclose", "with"):
            names = [getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks()]
            assert "_complete" not in names
            with pytest.raises(StopAsyncIteration):
                await anext(results)
        del results
        gc.collect()
        counts = batcher.statistics
        await until(lambda: counts().cancelled == counts().submitted - counts().completed > 0)
        assert counts().submitted <= 5


async def test_a_map_that_is_closed_beside_its_reader_ends() -> None:
    batcher = Held()
    results = batcher.map(["a", "b", "c"], at_once=2)
    reading = asyncio.create_task(anext(results, None))
    await until(lambda: len(batcher.calls) == 2)
    with pytest.raises(RuntimeError, match="another task waits"):
        await anext(results)
    assert batcher.cancelled == [], "the reader goes on"
    await results.aclose()
    assert await reading is None
    assert sorted(batcher.cancelled) == ["a", "b"]
    assert batcher.begun == ["a", "b"]


async def test_another_loop_is_refused() -> None:
    async with fake_batcher() as batcher:
        results = batcher.map(["a", "b"], max_tokens=2, at_once=1)
        await anext(results)
        with pytest.raises(InvalidRequestError, match="begun in another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(anext(results)))  # type: ignore[arg-type]
        assert (await anext(results)).result().token_ids


async def test_an_item_waits_where_the_queue_is_full() -> None:
    options = {"n_parallel": 2, "max_queue_requests": 1}
    async with fake_batcher(FakeEngine(n_parallel=2), **options) as batcher:
        items = [f"prompt {i}" for i in range(12)]
        made = [one async for one in batcher.map(items, max_tokens=3, at_once=6)]
        assert sorted(one.item for one in made) == sorted(items)
        assert [one.error for one in made if one.error] == []
        assert batcher.statistics().rejected > 0


class Full(ComposedCalls):
    """A batcher whose queue is full for ever."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    async def generate(self, prompt: Any, params: Any = None, **options: Any) -> Any:
        self.timeouts.append(options["timeout"])
        raise QueueFullError("full", 0.01)


async def test_an_item_waits_no_longer_than_its_timeout() -> None:
    batcher = Full()
    (one,) = [one async for one in batcher.map(["a"], timeout=0.1)]
    assert isinstance(one.error, QueueFullError)
    assert len(batcher.timeouts) > 1
    assert batcher.timeouts[0] == 0.1
    assert batcher.timeouts == sorted(batcher.timeouts, reverse=True)
    assert min(batcher.timeouts) > 0


async def test_the_timeout_is_of_each_item() -> None:
    clock = FakeClock()
    engine = FakeEngine(n_parallel=1, before_step=lambda plan: clock.advance(1.0))
    async with fake_batcher(engine, clock=clock, batch_size=1, n_parallel=1) as batcher:
        made = [
            one async for one in batcher.map(["a", "b"], timeout=3.5, ignore_eos=True, at_once=1)
        ]
    assert [one.result().finish_reason for one in made] == ["deadline"] * 2
    assert DeadlineExceededError.__mro__[1] is PybatcherError


async def test_a_batcher_that_closes_ends_the_map() -> None:
    async with fake_batcher(FakeEngine(step_delay=0.001)) as batcher:
        results = batcher.map([{"prompt": "a", "max_tokens": 1}, *["b"] * 99], at_once=2, **LONG)
        await anext(results)
        await batcher.close(drain=False)
        with pytest.raises(BatcherClosedError):
            await anext(results)
    with pytest.raises(BatcherClosedError, match="not started"):
        await anext(fake_batcher().map(["a"]))


@pytest.mark.parametrize("status", ["ready", "failed"])
async def test_an_engine_that_has_failed_for_good_ends_the_map(status: Any) -> None:
    batcher = Held()
    batcher.state = Health(status, "")
    error = EngineFailedError("broken")
    results = batcher.map(["a", "b"], at_once=2)
    reading = asyncio.create_task(anext(results))
    await until(lambda: len(batcher.calls) == 2)
    batcher.calls["a"].set_exception(error)
    if status == "ready":
        assert (await reading).error is error
        await results.aclose()
    else:
        with pytest.raises(EngineFailedError, match="broken"):
            await reading
    assert batcher.cancelled == ["b"]


async def test_an_error_that_is_not_expected_ends_the_map() -> None:
    batcher = Held()
    reading = asyncio.create_task(anext(batcher.map(["a", "b"])))
    await until(lambda: len(batcher.calls) == 2)
    batcher.calls["a"].set_exception(KeyError("a defect"))
    with pytest.raises(KeyError, match="a defect"):
        await reading
    assert batcher.cancelled == ["b"]


@pytest.mark.slow
async def test_with_the_shipped_model() -> None:
    async with Batcher() as batcher:
        prompts = [f"{PROMPT} {i}" for i in range(40)]
        together = await batcher.generate(prompts, max_tokens=8)
        found: dict[int, Completion] = {}
        async for one in batcher.map(prompts, max_tokens=8):
            found[one.index] = one.result()
        assert [found[i].token_ids for i in range(40)] == [one.token_ids for one in together]

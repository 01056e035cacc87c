"""`map_bounded`: order, limit, the first error, cancellation."""

from __future__ import annotations

import asyncio

import pytest
from batcher_helpers import until

from pybatcher.calls.composed.bounded import map_bounded


class Work:
    """A function of numbers that ends when a test says so, and counts who is in it."""

    def __init__(self) -> None:
        self.running: dict[int, asyncio.Future[str]] = {}
        self.begun: list[int] = []
        self.cancelled: list[int] = []
        self.most_at_once = 0

    async def __call__(self, item: int) -> str:
        self.begun.append(item)
        self.running[item] = asyncio.get_running_loop().create_future()
        self.most_at_once = max(self.most_at_once, len(self.running))
        try:
            return await self.running[item]
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        finally:
            del self.running[item]


async def test_results_are_in_the_order_of_the_items_whatever_ends_first() -> None:
    work = Work()
    task = asyncio.create_task(map_bounded(work, range(10, 20), 4))
    while not task.done():
        if work.running:
            last = max(work.running)
            work.running[last].set_result(f"of {last}")
        await asyncio.sleep(0)
    assert task.result() == [f"of {i}" for i in range(10, 20)]
    assert work.begun == list(range(10, 20))


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (50, 10)])
async def test_the_limit_is_reached_and_never_exceeded(limit: int, most: int) -> None:
    work = Work()
    task = asyncio.create_task(map_bounded(work, range(10), limit))
    while not task.done():
        for future in work.running.values():
            if not future.done():
                future.set_result("")
        await asyncio.sleep(0)
    assert len(task.result()) == 10
    assert work.most_at_once == most


async def test_the_first_error_is_raised_and_cancels_the_others() -> None:
    work, error = Work(), KeyError("the first")
    task = asyncio.create_task(map_bounded(work, range(10), 3))
    await until(lambda: len(work.running) == 3)
    work.running[1].set_exception(error)
    with pytest.raises(KeyError) as raised:
        await task
    assert raised.value is error
    assert sorted(work.cancelled) == [0, 2]
    assert work.begun == [0, 1, 2]


async def test_cancelled_it_cancels_all() -> None:
    work = Work()
    task = asyncio.create_task(map_bounded(work, range(10), 3))
    await until(lambda: len(work.running) == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(work.cancelled) == work.begun == [0, 1, 2]


async def test_nothing_of_nothing() -> None:
    assert await map_bounded(Work(), [], 3) == []

"""Calls into a loop from other threads: each future ends, whatever becomes of the loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest
from batcher_helpers import PATIENCE, until

from pybatcher import BatcherClosedError
from pybatcher.calls.threads.remote_calls import RemoteCalls


async def answer() -> tuple[int, int]:
    await asyncio.sleep(0)
    return 42, threading.get_ident()


async def fail() -> None:
    raise KeyError("x")


async def test_results_and_errors_come_back() -> None:
    calls = RemoteCalls()

    def elsewhere() -> None:
        assert calls.run(answer).result(PATIENCE) == (42, home)
        with pytest.raises(KeyError):
            calls.run(fail).result(PATIENCE)

    home = threading.get_ident()
    await asyncio.to_thread(elsewhere)
    calls.close()
    with pytest.raises(BatcherClosedError):
        calls.run(answer)


async def test_cancelling_the_future_cancels_the_task() -> None:
    calls, began, cancelled = RemoteCalls(), asyncio.Event(), asyncio.Event()

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    future = calls.run(forever)
    await began.wait()
    assert await asyncio.to_thread(future.cancel)
    async with asyncio.timeout(PATIENCE):
        await cancelled.wait()
    never = calls.run(forever)
    began.clear()
    assert never.cancel()
    await until(lambda: not calls._not_begun)
    assert not began.is_set()


async def test_what_has_not_begun_when_it_is_closed_fails() -> None:
    calls = RemoteCalls()
    future, withdrawn = calls.run(answer), calls.run(answer)
    withdrawn.cancel()
    calls.close()
    with pytest.raises(BatcherClosedError, match="before this call began"):
        future.result(0)
    await asyncio.sleep(0)
    assert withdrawn.cancelled()


async def test_a_task_that_is_cancelled_cancels_its_future() -> None:
    calls = RemoteCalls()
    future = calls.run(asyncio.Event().wait)
    await until(lambda: bool(calls._tasks))
    for task in calls._tasks:
        task.cancel()
    await until(future.done)
    with pytest.raises(CancelledError):
        future.result(0)


def test_no_thread_is_left_waiting_at_the_end_of_a_loop() -> None:
    ended: list[int] = []

    def keep_calling(calls: RemoteCalls) -> None:
        try:
            while True:
                calls.run(answer).result(PATIENCE)
        except (BatcherClosedError, CancelledError):
            ended.append(1)

    async def main() -> None:
        calls = RemoteCalls()
        asyncio.current_task().add_done_callback(lambda _: calls.close())
        for _ in range(4):
            threads.append(threading.Thread(target=keep_calling, args=(calls,)))
            threads[-1].start()
        await asyncio.sleep(0.005)

    for _ in range(10):
        threads: list[threading.Thread] = []
        ended.clear()
        asyncio.run(main())
        for thread in threads:
            thread.join(PATIENCE)
        assert len(ended) == 4


def test_a_loop_that_was_closed_without_a_word() -> None:
    async def make() -> RemoteCalls:
        return RemoteCalls()

    calls = asyncio.run(make())
    with pytest.raises(BatcherClosedError, match="event loop of the batcher is closed"):
        calls.run(answer)
    assert not calls._not_begun

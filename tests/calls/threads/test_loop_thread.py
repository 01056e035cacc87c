"""An event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pybatcher import BatcherClosedError
from pybatcher.calls.threads.loop_thread import LoopThread


async def answer() -> tuple[int, str]:
    await asyncio.sleep(0)
    return 42, threading.current_thread().name


async def fail() -> None:
    raise KeyError("x")


def test_call_gives_what_the_coroutine_gives() -> None:
    thread = LoopThread("pybatcher-loop")
    assert thread.call(answer()) == (42, "pybatcher-loop")
    with pytest.raises(KeyError):
        thread.call(fail())
    thread.stop()
    thread.stop()
    with pytest.raises(BatcherClosedError):
        thread.call(answer())
    thread.call_soon(lambda: None)


def test_stop_waits_for_what_is_under_way() -> None:
    thread = LoopThread("pybatcher-loop")
    started, stopping, results = threading.Event(), asyncio.Event(), []

    async def slow() -> str:
        started.set()
        await stopping.wait()
        await asyncio.sleep(0)
        return "done"

    async def tell() -> None:
        stopping.set()

    caller = threading.Thread(target=lambda: results.append(thread.call(slow())))
    caller.start()
    assert started.wait(20)
    thread.stop(after=tell)
    caller.join(20)
    assert results == ["done"]


def test_stop_from_its_own_thread_does_not_wait_for_itself() -> None:
    thread = LoopThread("pybatcher-loop")
    stopped = threading.Event()

    def stop() -> None:
        thread.stop()
        stopped.set()

    thread.call_soon(stop)
    assert stopped.wait(20)

"""Who hears first that an engine has failed for good, or hangs: `on_failure`, then callers."""

from __future__ import annotations

import asyncio
import threading

import pytest
from batcher_helpers import wait_for
from faulty_engine import FaultyEngine, once

from pybatcher import EngineFailedError
from pybatcher.testing import FakeClock, fake_batcher


async def test_it_is_called_once_before_any_caller_hears_of_it() -> None:
    told: list[EngineFailedError] = []
    waiting: list[asyncio.Task[object]] = []

    def on_failure(error: EngineFailedError) -> None:
        told.append(error)
        assert not any(task.done() for task in waiting)

    engine = FaultyEngine(once(2))
    async with fake_batcher(engine, max_restarts=0, on_failure=on_failure) as batcher:
        waiting += [asyncio.ensure_future(batcher.generate([i], max_tokens=9)) for i in (1, 2)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [EngineFailedError] * 2
        with pytest.raises(EngineFailedError):
            await batcher.generate([1])
    assert len(told) == 1
    assert "max_restarts" in str(told[0])


async def test_a_restart_that_helps_is_no_failure() -> None:
    told: list[EngineFailedError] = []
    async with fake_batcher(FaultyEngine(once(2)), on_failure=told.append) as batcher:
        await batcher.generate([1], max_tokens=9)
    assert not told


async def test_one_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def on_failure(error: EngineFailedError) -> None:
        raise RuntimeError("not now")

    engine = FaultyEngine(once(2))
    async with fake_batcher(engine, max_restarts=0, on_failure=on_failure) as batcher:
        with pytest.raises(EngineFailedError):
            await batcher.generate([1], max_tokens=9)
    assert "on_failure raised" in caplog.text


async def test_a_hang_is_a_failure() -> None:
    clock, told, go_on = FakeClock(), asyncio.Event(), threading.Event()
    engine = FaultyEngine(before_step=lambda _plan: wait_for(go_on))
    options = {"clock": clock, "step_timeout": 0.02, "on_failure": lambda _error: told.set()}
    async with fake_batcher(engine, **options) as batcher:
        asking = asyncio.ensure_future(batcher.generate([1]))
        while not told.is_set():
            await asyncio.sleep(0.01)
            clock.advance(0.02)
        with pytest.raises(EngineFailedError):
            await asking
        go_on.set()

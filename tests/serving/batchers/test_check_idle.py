"""`check_idle`: what is left of requests that have ended, and what is not left."""

from __future__ import annotations

import asyncio
import threading

import pytest
from batcher_helpers import until, wait_for

from pybatcher import BatcherClosedError, EngineError
from pybatcher.serving.output_processor import OutputProcessor
from pybatcher.testing import FakeEngine, fake_batcher

PROMPT = "Once upon a time"


class Leaky(FakeEngine):
    """Frees no sequence."""

    def seq_remove(self, seq_id: int, start: int = 0, end: int = -1) -> None:
        pass


async def test_between_requests_nothing_is_left_but_what_prefixes_hold() -> None:
    async with fake_batcher(FakeEngine(block_size=4), max_prefixes=2) as batcher:
        batcher.check_idle()
        await batcher.add_prefix("kept for good", name="kept")
        await batcher.generate(PROMPT, max_tokens=3)
        batcher.check_idle()
        await batcher.remove_prefix("kept")
        batcher.check_idle()
    batcher.check_idle()


async def test_a_request_under_way_is_left() -> None:
    go_on = threading.Event()
    engine = FakeEngine(before_step=lambda plan: wait_for(go_on))
    async with fake_batcher(engine) as batcher:
        task = asyncio.create_task(batcher.generate(PROMPT, max_tokens=3))
        await until(lambda: batcher.statistics().running == 1)
        with pytest.raises(EngineError, match="not idle: 1 requests have not ended"):
            batcher.check_idle()
        go_on.set()
        await task
        batcher.check_idle()


async def test_blocks_that_nobody_uses_and_nobody_freed(no_leaks: list[str]) -> None:
    async with fake_batcher(Leaky(block_size=4)) as batcher:
        await batcher.generate(PROMPT, max_tokens=3)
        with pytest.raises(EngineError, match=r"5 KV blocks are held, of which prefixes .* 0"):
            batcher.check_idle()
    with pytest.raises(EngineError, match="5 KV blocks are held"):
        batcher.check_idle()
    assert len(no_leaks) == 1, "the fixture of all tests has seen it too"
    no_leaks.clear()


async def test_blocks_of_a_prefix_that_was_removed(no_leaks: list[str]) -> None:
    async with fake_batcher(Leaky(block_size=4), max_prefixes=2) as batcher:
        await batcher.add_prefix("kept for good", name="kept")
        batcher.check_idle()
        await batcher.remove_prefix("kept")
        with pytest.raises(EngineError, match="4 KV blocks are held"):
            batcher.check_idle()
    no_leaks.clear()


async def test_bookkeeping_that_does_not_add_up(
    monkeypatch: pytest.MonkeyPatch, no_leaks: list[str]
) -> None:
    def broken() -> None:
        raise EngineError("block 3 has 2 holders and 1 is known")

    engine = FakeEngine()
    monkeypatch.setattr(engine, "check_integrity", broken)
    async with fake_batcher(engine) as batcher:
        with pytest.raises(EngineError, match="block 3 has 2 holders"):
            batcher.check_idle()
    assert no_leaks
    no_leaks.clear()


async def test_a_request_that_the_scheduler_forgot(
    monkeypatch: pytest.MonkeyPatch, no_leaks: list[str]
) -> None:
    monkeypatch.setattr(OutputProcessor, "process", lambda self, events: None)
    async with fake_batcher() as batcher:
        task = asyncio.create_task(batcher.generate(PROMPT, max_tokens=1))
        await until(lambda: batcher.statistics().completed == 1)
    with pytest.raises(BatcherClosedError):
        await task
    with pytest.raises(EngineError, match="1 requests have not ended"):
        batcher.check_idle()
    assert no_leaks
    no_leaks.clear()


async def test_a_batcher_that_was_not_started_cannot_say() -> None:
    with pytest.raises(BatcherClosedError, match="not started"):
        fake_batcher().check_idle()

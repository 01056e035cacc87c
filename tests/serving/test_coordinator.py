"""When the coordinator computes, that it never holds up the loop, and what a failure does."""

from __future__ import annotations

import asyncio
import threading

import pytest
from batcher_helpers import note_waits, until, wait_for, wakes
from virtual_time import in_virtual_time

from pybatcher import (
    EngineError,
    EngineFailedError,
    QueueFullError,
    RequestTooLongError,
)
from pybatcher.scheduling import StepPlan
from pybatcher.testing import FakeClock, FakeEngine, fake_batcher

PROMPT = "Once upon a time"


async def test_queue_full() -> None:
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=1, before_step=lambda plan: wait_for(go_on))
    async with fake_batcher(engine, max_queue_requests=2, batch_size=1) as batcher:
        tasks = [asyncio.create_task(batcher.generate(PROMPT, max_tokens=2))]
        await until(lambda: batcher.statistics().running == 1)
        tasks += [asyncio.create_task(batcher.generate(PROMPT, max_tokens=2)) for _ in range(2)]
        await until(lambda: batcher.statistics().queued == 2)
        with pytest.raises(QueueFullError, match="max_queue_requests is 2") as caught:
            await batcher.generate(PROMPT, max_tokens=2)
        assert caught.value.retry_after > 0
        go_on.set()
        assert len(await asyncio.gather(*tasks)) == 3
        assert batcher.statistics().rejected == 1


async def test_a_request_that_is_refused_leaves_nothing_and_is_told_to_nobody() -> None:
    told: list[object] = []
    async with fake_batcher(n_ctx=64) as batcher:
        batcher.attach(told.append)
        with pytest.raises(RequestTooLongError):
            await batcher.generate([65] * 64)
        batcher.check_idle()
        counts = batcher.statistics()
        assert (counts.rejected, counts.submitted) == (1, 0)
    assert told == []


async def test_samples_after_one_that_is_refused_are_not_scheduled() -> None:
    wait = {"batch_size": 9, "batch_timeout": 60.0, "clock": FakeClock()}
    async with fake_batcher(max_queue_requests=4, **wait) as batcher:
        first = asyncio.create_task(batcher.generate(PROMPT, max_tokens=1))
        await until(lambda: batcher.statistics().queued == 1)
        with pytest.raises(QueueFullError):
            await batcher.generate(PROMPT, max_tokens=2, n=4)
        assert batcher.statistics().queued == 1
        first.cancel()
        await asyncio.wait([first])
        batcher.check_idle()
        counts = batcher.statistics()
        assert (counts.rejected, counts.submitted, counts.cancelled) == (1, 4, 4)


async def test_flush_on_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, clock, engine = note_waits(monkeypatch), FakeClock(), FakeEngine()
    async with fake_batcher(engine, batch_size=3, batch_timeout=60.0, clock=clock) as batcher:
        tasks = [
            asyncio.create_task(batcher.generate(f"{i}{PROMPT}", max_tokens=1)) for i in range(2)
        ]
        await until(lambda: batcher.statistics().submitted == 2)
        assert batcher.statistics().queued == 2, (
            "the coordinator has acted since, and let them wait"
        )
        assert waits[-1] == 60.0
        tasks.append(asyncio.create_task(batcher.generate(PROMPT + "!", max_tokens=1)))
        await asyncio.gather(*tasks)
    assert [len(plan.entries) for plan in engine.plans] == [3]


async def test_flush_on_batch_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, clock, engine = note_waits(monkeypatch), FakeClock(), FakeEngine()
    async with fake_batcher(engine, batch_size=3, batch_timeout=0.005, clock=clock) as batcher:
        task = asyncio.create_task(batcher.generate(PROMPT, max_tokens=1))
        await until(lambda: batcher.statistics().submitted == 1)
        await wakes(waits)
        assert waits[-3:] == [0.005] * 3, "by its own clock no time has passed"
        assert batcher.statistics().queued == 1
        clock.advance(0.005)
        await task


@in_virtual_time
@pytest.mark.parametrize("seconds", [0.01, 1.0, 59.0, 61.0, 119.0])
async def test_a_lone_request_is_tried_before_its_deadline(seconds: float) -> None:
    async with fake_batcher(batch_timeout=60.0) as batcher:
        made = await batcher.generate(PROMPT, max_tokens=2, timeout=seconds)
        assert made.token_ids


async def test_gather_of_eight_is_one_prefill_pass() -> None:
    engine = FakeEngine()
    async with fake_batcher(engine, batch_timeout=60.0) as batcher:
        await asyncio.gather(*(batcher.generate(f"{i}", max_tokens=1) for i in range(8)))
    assert [len(plan.entries) for plan in engine.plans] == [8]


async def test_busy_admits_at_the_next_step_boundary() -> None:
    engine = FakeEngine(n_parallel=16, step_delay=0.001)
    async with fake_batcher(engine, batch_size=8, batch_timeout=60.0) as batcher:
        others = [
            asyncio.create_task(batcher.generate(f"{i}", max_tokens=50, ignore_eos=True))
            for i in range(7)
        ]
        stream = batcher.stream(PROMPT, max_tokens=50, ignore_eos=True)
        await anext(stream)
        await batcher.generate("a lone newcomer", max_tokens=1)
        assert not others[0].done()
        stream.close()
        await asyncio.gather(*others)


@in_virtual_time
async def test_idle_it_does_not_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = note_waits(monkeypatch)
    async with fake_batcher() as batcher:
        await batcher.generate(PROMPT, max_tokens=3)
        await until(lambda: waits[-1] is None)
        n_waits = len(waits)
        await asyncio.sleep(3600.0)
        assert len(waits) == n_waits
        assert waits[-1] is None, "it waits for mail and for nothing else"


async def test_the_loop_goes_on_while_the_engine_computes() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def block(plan: StepPlan) -> None:
        inside.set()
        wait_for(go_on)

    async with fake_batcher(FakeEngine(before_step=block)) as batcher:
        task = asyncio.create_task(batcher.generate(PROMPT, max_tokens=2))
        await until(inside.is_set)
        turns = 0
        for _ in range(100):
            await asyncio.sleep(0)
            turns += 1
        assert not task.done()
        assert turns == 100
        assert threading.current_thread() is threading.main_thread()
        go_on.set()
        await task


async def test_without_restarts_a_step_that_raises_fails_everybody() -> None:
    engine = FakeEngine(n_parallel=2)

    def break_later(plan: StepPlan) -> None:
        if len(engine.plans) == 5:
            raise MemoryError("no memory for the pass")

    engine.before_step = break_later
    async with fake_batcher(engine, max_restarts=0) as batcher:
        assert batcher.health().ok
        results = await asyncio.gather(
            *(batcher.generate(f"{i}", max_tokens=50, ignore_eos=True) for i in range(5)),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [EngineFailedError] * 5
        assert "no memory for the pass" in str(results[0])
        assert isinstance(results[0].__cause__, MemoryError)
        assert len({id(result) for result in results}) == 5
        health = batcher.health()
        assert (health.status, health.ok) == ("failed", False)
        assert "no memory for the pass" in health.reason
        with pytest.raises(EngineFailedError, match="no memory for the pass"):
            await batcher.generate(PROMPT)
        assert batcher.statistics().failed == 5
    assert engine.closed


async def test_a_call_of_the_engine_for_one_request_that_raises_ends_that_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine()

    def broken(seq_id: int, tokens: object) -> int:
        raise OSError("the index is gone")

    async with fake_batcher(engine) as batcher:
        await batcher.generate(PROMPT, max_tokens=1)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "seq_match", broken)
            for _ in range(5):
                with pytest.raises(EngineError, match="the index is gone"):
                    await batcher.generate(PROMPT, max_tokens=1)
        assert batcher.health().status == "ready"
        assert batcher.statistics().restarts == 0
        await batcher.generate(PROMPT, max_tokens=1)
    assert engine.closed


async def test_a_sequence_that_fails_harms_only_its_request() -> None:
    engine = FakeEngine()
    engine.fail_sequences = lambda plan: {0: "logits are not finite"} if plan.decode_rows else {}
    async with fake_batcher(engine, batch_timeout=0.02) as batcher:
        results = await asyncio.gather(
            *(batcher.generate(f"{i}", max_tokens=9) for i in range(3)), return_exceptions=True
        )
        failed = [result for result in results if isinstance(result, EngineFailedError)]
        assert len(failed) == 1
        assert "logits are not finite" in str(failed[0])
        assert batcher.health().ok
        assert batcher.statistics().completed == 2


async def test_text_that_cannot_be_made_fails_only_that_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pybatcher.text import Detokenizer

    push = Detokenizer.push

    def broken(self: Detokenizer, token_id: int) -> str:
        if self.poisoned:
            raise ZeroDivisionError("a defect")
        return push(self, token_id)

    init = Detokenizer.__init__

    def noting(self: Detokenizer, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        self.poisoned = kwargs["prompt_ids"] == (66,)

    monkeypatch.setattr(Detokenizer, "__init__", noting)
    monkeypatch.setattr(Detokenizer, "push", broken)
    async with fake_batcher() as batcher:
        results = await asyncio.gather(
            *(batcher.generate([token], max_tokens=5) for token in (65, 66, 67)),
            return_exceptions=True,
        )
        assert isinstance(results[1].__cause__, ZeroDivisionError)
        assert [len(results[0].token_ids), len(results[2].token_ids)] == [5, 5]
        assert batcher.health().ok
        counts = batcher.statistics()
        assert (counts.failed, counts.completed, counts.running) == (1, 2, 0)

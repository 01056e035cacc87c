from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from batcher_helpers import until

from pybatcher import Batcher, EngineFailedError
from pybatcher.cli.random_load import RandomLoad
from pybatcher.testing import FakeEngine, fake_batcher


@asynccontextmanager
async def loaded(batcher: Batcher, n_callers: int = 8) -> AsyncIterator[asyncio.Task[None]]:
    async with batcher:
        task = asyncio.create_task(RandomLoad(batcher, n_callers, 60).run())
        yield task
        task.cancel()
        await asyncio.wait({task})


async def some_time(
    batcher: Batcher, task: asyncio.Task[None], condition: Callable[[], bool]
) -> None:
    """Wait until the condition holds, and then for some more requests."""
    await until(lambda: task.done() or condition())
    completed = batcher.statistics().completed
    await until(lambda: task.done() or batcher.statistics().completed > completed + 3)
    assert not task.done()


async def test_callers_complete_leave_and_run_late() -> None:
    batcher = fake_batcher(FakeEngine(n_parallel=2, step_delay=0.005))
    async with loaded(batcher) as task:
        await until(
            lambda: (c := batcher.statistics()).completed > 0 and c.cancelled > 0 and c.expired > 0
        )
        assert batcher.statistics().running + batcher.statistics().queued <= 8
        assert not task.done()
    assert task.cancelled()


async def test_a_full_queue_is_waited_for() -> None:
    batcher = fake_batcher(FakeEngine(n_parallel=1), max_queue_requests=1)
    async with loaded(batcher) as task:
        await some_time(batcher, task, lambda: batcher.statistics().rejected > 3)


async def test_prompts_that_are_too_long_are_let_go() -> None:
    batcher = fake_batcher(FakeEngine(n_ctx=192))
    async with loaded(batcher) as task:
        await some_time(batcher, task, lambda: batcher.statistics().rejected > 3)


async def test_one_that_fails_is_let_go_and_a_batcher_that_fails_is_not() -> None:
    engine = FakeEngine()
    engine.fail_sequences = lambda plan: (
        {plan.entries[0].seq_id: "no luck"} if len(engine.plans) % 50 == 0 else {}
    )

    def fail(plan: object) -> None:
        raise OSError("the weights are gone")

    batcher = fake_batcher(engine)
    async with loaded(batcher) as task:
        await some_time(batcher, task, lambda: batcher.statistics().failed > 3)
        engine.before_step = fail
        with pytest.raises(EngineFailedError, match="the weights are gone"):
            await task


async def test_the_same_questions_each_time() -> None:
    prompts: list[set[object]] = []
    for _ in range(2):
        engine = FakeEngine()
        batcher = fake_batcher(engine)
        async with loaded(batcher, n_callers=1):
            await until(lambda batcher=batcher: batcher.statistics().completed > 5)
        prompts.append({plan.entries[-1].tokens for plan in engine.plans if plan.prefill_rows})
    assert len(prompts[0] & prompts[1]) >= 5

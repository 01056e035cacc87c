"""How a batcher is closed, and what becomes of those who wait."""

from __future__ import annotations

import asyncio
import threading

import pytest
from batcher_helpers import until, wait_for

from pybatcher import (
    BatcherClosedError,
)
from pybatcher.scheduling import StepPlan
from pybatcher.testing import FakeEngine, byte_tokenizer, fake_batcher

PROMPT = "Once upon a time"


async def test_close_drains() -> None:
    engine = FakeEngine(n_parallel=2)
    batcher = fake_batcher(engine)
    await batcher.start()
    tasks = [asyncio.create_task(batcher.generate(f"{i}", max_tokens=20)) for i in range(6)]
    await until(lambda: batcher.statistics().submitted == 6)
    await batcher.close()
    assert len(await asyncio.gather(*tasks)) == 6
    assert engine.closed
    assert batcher.health().status == "closed"
    with pytest.raises(BatcherClosedError, match="closed"):
        await batcher.generate(PROMPT)
    with pytest.raises(BatcherClosedError):
        await anext(batcher.stream(PROMPT))
    with pytest.raises(BatcherClosedError):
        await batcher.start()


@pytest.mark.parametrize("how", ["drain=False", "timeout"])
async def test_close_fails_what_is_not_finished(how: str) -> None:
    engine = FakeEngine(n_parallel=2, step_delay=0.001)
    batcher = fake_batcher(engine)
    await batcher.start()
    tasks = [
        asyncio.create_task(batcher.generate(f"{i}", max_tokens=8000, ignore_eos=True))
        for i in range(4)
    ]
    await until(lambda: batcher.statistics().generated_tokens > 4)
    if how == "timeout":
        await batcher.close(timeout=0.01)
    else:
        await batcher.close(drain=False)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [BatcherClosedError] * 4
    assert engine.closed


async def test_close_while_a_step_hangs_fails_callers_at_once() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def block(plan: StepPlan) -> None:
        inside.set()
        wait_for(go_on)

    batcher = fake_batcher(FakeEngine(before_step=block))
    await batcher.start()
    task = asyncio.create_task(batcher.generate(PROMPT))
    await until(inside.is_set)
    closing = asyncio.create_task(batcher.close(drain=False))
    with pytest.raises(BatcherClosedError):
        await task
    assert not closing.done()
    assert batcher.health().status == "closing"
    go_on.set()
    await closing


async def test_close_again_and_from_several_tasks() -> None:
    batcher = fake_batcher()
    await batcher.start()
    await batcher.start()
    task = asyncio.create_task(batcher.generate(PROMPT, max_tokens=50))
    await until(lambda: batcher.statistics().submitted == 1)
    await asyncio.gather(*(batcher.close() for _ in range(3)))
    await batcher.close(drain=False)
    assert (await task).finish_reason in ("stop", "length")


async def test_close_before_start() -> None:
    batcher = fake_batcher()
    assert batcher.health().status == "new"
    assert not batcher.health().ok
    with pytest.raises(BatcherClosedError, match="not started"):
        await batcher.generate(PROMPT)
    with pytest.raises(BatcherClosedError, match="not started"):
        batcher.statistics()
    await batcher.close()
    assert batcher.health().status == "closed"
    with pytest.raises(BatcherClosedError):
        await batcher.start()


async def test_an_exception_in_the_body_does_not_drain() -> None:
    tasks: list[asyncio.Task[object]] = []

    async def body() -> None:
        async with fake_batcher(FakeEngine(step_delay=0.001)) as batcher:
            tasks.append(
                asyncio.create_task(batcher.generate(PROMPT, max_tokens=8000, ignore_eos=True))
            )
            await until(lambda: batcher.statistics().running == 1)
            raise KeyError

    with pytest.raises(KeyError):
        await body()
    with pytest.raises(BatcherClosedError):
        await tasks[0]


async def test_a_close_that_is_cancelled_goes_on_and_can_be_awaited_again() -> None:
    go_on = threading.Event()
    batcher = fake_batcher(FakeEngine(before_step=lambda plan: wait_for(go_on)))
    await batcher.start()
    task = asyncio.create_task(batcher.generate(PROMPT, max_tokens=2))
    await until(lambda: batcher.statistics().submitted == 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(batcher.close(), 0.01)
    go_on.set()
    await batcher.close()
    assert len((await task).token_ids) == 2


async def test_a_request_that_comes_right_behind_the_close() -> None:
    batcher = fake_batcher()
    await batcher.start()
    closing = asyncio.create_task(batcher.close())
    late = asyncio.create_task(batcher.generate(PROMPT, max_tokens=2))
    with pytest.raises(BatcherClosedError):
        await late
    await closing


async def test_closed_while_a_long_prompt_is_still_tokenised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, inside, go_on = byte_tokenizer(), threading.Event(), threading.Event()
    encode = tokenizer.encode

    def slow(text: str, **options: bool) -> list[int]:
        inside.set()
        wait_for(go_on)
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", slow)
    batcher = fake_batcher(tokenizer=tokenizer)
    await batcher.start()
    task = asyncio.create_task(batcher.generate("long " * 1000, max_tokens=1))
    await until(inside.is_set)
    await batcher.close()
    go_on.set()
    with pytest.raises(BatcherClosedError):
        await task


async def test_close_does_not_wait_for_company() -> None:
    batcher = fake_batcher(batch_size=8, batch_timeout=60.0)
    await batcher.start()
    task = asyncio.create_task(batcher.generate(PROMPT, max_tokens=2))
    await until(lambda: batcher.statistics().queued == 1)
    async with asyncio.timeout(20):
        await batcher.close()
    assert len((await task).token_ids) == 2

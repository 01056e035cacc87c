"""A step that does not end: callers are told, the batcher can be closed, the interpreter exits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest
from batcher_helpers import PATIENCE, note_waits, until, wait_for, wakes
from faulty_engine import FaultyEngine

from pybatcher import BatcherClosedError, BlockingBatcher, EngineFailedError
from pybatcher.scheduling import StepPlan
from pybatcher.serving import service
from pybatcher.testing import FakeClock, fake_batcher

PROMPT = "Once upon a time"
LONG = {"max_tokens": 200, "ignore_eos": True}
STEP_TIMEOUT = 0.02  # seconds of real time between looks at the fake clock, which decides


class Hanging:
    """An engine whose step of the given number, counted from 0, waits for `go_on`."""

    def __init__(self, step: int = 3, **options: object) -> None:
        self._step = step
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.engine = FaultyEngine(before_step=self._block, **options)

    def _block(self, plan: StepPlan) -> None:
        if len(self.engine.plans) == self._step + 1:
            self.inside.set()
            wait_for(self.go_on)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.go_on.set()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    return note_waits(monkeypatch)


async def test_a_hang_is_told_to_everybody_and_survived_if_it_ends(
    hanging: Hanging, waits: list[float | None]
) -> None:
    clock = FakeClock()
    options = {"clock": clock, "step_timeout": STEP_TIMEOUT, "batch_size": 5}
    async with fake_batcher(hanging.engine, **options) as batcher:
        tasks = [asyncio.create_task(batcher.generate(f"{i}", **LONG)) for i in range(4)]
        stream = batcher.stream(PROMPT, **LONG)
        assert (await anext(stream)).token_ids
        await until(hanging.inside.is_set)
        await wakes(waits, 5)
        assert batcher.health().ok, "by the batcher's own clock no time has passed"
        clock.advance(STEP_TIMEOUT)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [EngineFailedError] * 4
        assert len({id(result) for result in results}) == 4
        with pytest.raises(EngineFailedError, match=r"a step has not ended within step_timeout"):
            async for _ in stream:
                pass
        health = batcher.health()
        assert (health.status, health.ok) == ("hung", False)
        assert "a step has not ended within step_timeout = 0.02 s" in health.reason
        with pytest.raises(EngineFailedError, match="step_timeout"):
            await batcher.generate(PROMPT)
        assert batcher.statistics().failed == 5
        assert batcher.statistics().restarts == 0

        hanging.go_on.set()
        await until(lambda: batcher.health().ok)
        again = [asyncio.create_task(batcher.generate(f"{i}", **LONG)) for i in range(5)]
        completions = await asyncio.gather(*again)
        assert batcher.statistics().restarts == 1
        assert "after a step that hung" in batcher.health().reason
    async with fake_batcher() as batcher:
        for i, completion in enumerate(completions):
            alone = await batcher.generate(f"{i}", **LONG)
            assert completion.token_ids == alone.token_ids


async def test_a_hang_past_the_intensity_is_a_failure_for_good(hanging: Hanging) -> None:
    clock = FakeClock()
    options = {"clock": clock, "step_timeout": STEP_TIMEOUT, "batch_size": 1, "max_restarts": 0}
    async with fake_batcher(hanging.engine, **options) as batcher:
        task = asyncio.create_task(batcher.generate(PROMPT, **LONG))
        await until(hanging.inside.is_set)
        clock.advance(1.0)
        with pytest.raises(EngineFailedError):
            await task
        assert batcher.health().status == "hung"
        hanging.go_on.set()
        await until(lambda: batcher.health().status == "failed")
        with pytest.raises(EngineFailedError):
            await batcher.generate(PROMPT)
    assert hanging.engine.n_restarts == 0
    assert hanging.engine.closed


async def test_a_restart_that_hangs() -> None:
    clock, inside, go_on = FakeClock(), threading.Event(), threading.Event()

    def before_restart() -> None:
        inside.set()
        wait_for(go_on)

    engine = FaultyEngine(lambda plan: None if inside.is_set() else OSError(), before_restart)
    options = {"clock": clock, "step_timeout": STEP_TIMEOUT, "batch_size": 1}
    async with fake_batcher(engine, **options) as batcher:
        task = asyncio.create_task(batcher.generate(PROMPT, **LONG))
        await until(inside.is_set)
        clock.advance(1.0)
        with pytest.raises(EngineFailedError, match="a restart of the engine has not ended"):
            await task
        assert batcher.health().status == "hung"
        go_on.set()
        await until(lambda: batcher.health().ok)
        assert len((await batcher.generate(PROMPT, **LONG)).token_ids) == 200


async def test_the_restart_after_a_hang_may_hang_too(
    hanging: Hanging, waits: list[float | None]
) -> None:
    clock, restarting, go_on = FakeClock(), threading.Event(), threading.Event()

    def before_restart() -> None:
        restarting.set()
        wait_for(go_on)

    hanging.engine.before_restart = before_restart
    batcher = fake_batcher(hanging.engine, clock=clock, step_timeout=STEP_TIMEOUT, batch_size=1)
    await batcher.start()
    task = asyncio.create_task(batcher.generate(PROMPT, **LONG))
    await until(hanging.inside.is_set)
    clock.advance(1.0)
    with pytest.raises(EngineFailedError):
        await task
    hanging.go_on.set()
    await until(restarting.is_set)
    with pytest.raises(EngineFailedError, match="a step has not ended"):
        await batcher.generate(PROMPT)
    assert batcher.health().status == "hung"
    closing = asyncio.create_task(batcher.close())
    await wakes(waits)
    assert not closing.done()
    clock.advance(1.0)
    async with asyncio.timeout(PATIENCE):
        await closing
    go_on.set()
    await until(lambda: hanging.engine.closed)


async def test_only_a_step_under_way_has_a_timer(waits: list[float | None]) -> None:
    clock = FakeClock()
    async with fake_batcher(clock=clock, step_timeout=77.0, batch_size=1) as batcher:
        await batcher.generate(PROMPT, max_tokens=3)
        await until(lambda: waits[-1] is None)
    assert waits.count(77.0) == 3
    assert set(waits) == {77.0, None}


@pytest.mark.parametrize("drain", [True, False])
async def test_close_returns_although_the_thread_is_stuck(
    hanging: Hanging, drain: bool, waits: list[float | None]
) -> None:
    clock = FakeClock()
    batcher = fake_batcher(hanging.engine, clock=clock, step_timeout=STEP_TIMEOUT, batch_size=1)
    await batcher.start()
    task = asyncio.create_task(batcher.generate(PROMPT, **LONG))
    await until(hanging.inside.is_set)
    closing = asyncio.create_task(batcher.close(drain=drain))
    await wakes(waits)
    assert not closing.done()
    clock.advance(1.0)
    async with asyncio.timeout(PATIENCE):
        await closing
    with pytest.raises(EngineFailedError if drain else BatcherClosedError):
        await task
    assert batcher.health().status == "closed"
    assert not hanging.engine.closed
    with pytest.raises(BatcherClosedError):
        await batcher.generate(PROMPT)
    hanging.go_on.set()
    await until(lambda: hanging.engine.closed)


async def test_close_when_the_hang_is_known(hanging: Hanging) -> None:
    clock = FakeClock()
    batcher = fake_batcher(hanging.engine, clock=clock, step_timeout=STEP_TIMEOUT, batch_size=1)
    await batcher.start()
    task = asyncio.create_task(batcher.generate(PROMPT, **LONG))
    await until(hanging.inside.is_set)
    clock.advance(1.0)
    with pytest.raises(EngineFailedError):
        await task
    async with asyncio.timeout(PATIENCE):
        await batcher.close()
    assert batcher.health().status == "closed"


@pytest.mark.parametrize("drain", [True, False])
async def test_close_has_no_more_patience_than_it_was_given(
    hanging: Hanging, drain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_LEAST_STEP_WAIT", 0.01)
    batcher = fake_batcher(hanging.engine, step_timeout=None, batch_size=1)
    await batcher.start()
    task = asyncio.create_task(batcher.generate(PROMPT, **LONG))
    await until(hanging.inside.is_set)
    async with asyncio.timeout(PATIENCE):
        await batcher.close(drain=drain, timeout=0.01)
    with pytest.raises(BatcherClosedError):
        await task
    assert not hanging.engine.closed
    hanging.go_on.set()
    await until(lambda: hanging.engine.closed)


def test_a_blocking_batcher_is_closed_although_the_thread_is_stuck() -> None:
    hanging = Hanging(step=0)
    batcher = BlockingBatcher.over(
        fake_batcher(hanging.engine, step_timeout=STEP_TIMEOUT, batch_size=1)
    )
    batcher.start()
    with pytest.raises(EngineFailedError, match="step_timeout"):
        batcher.generate(PROMPT, **LONG)
    assert batcher.health().status == "hung"
    batcher.close()
    assert not hanging.engine.closed
    hanging.go_on.set()


EXITS = {
    "asyncio, closed": """
        async def main():
            async with fake_batcher(engine, step_timeout=0.05) as batcher:
                with contextlib.suppress(EngineFailedError):
                    await batcher.generate("x")
    """,
    "asyncio, not closed, known to hang": """
        async def main():
            batcher = fake_batcher(engine, step_timeout=0.05)
            await batcher.start()
            with contextlib.suppress(EngineFailedError):
                await batcher.generate("x")
    """,
    "asyncio, not closed, not known to hang": """
        async def main():
            batcher = fake_batcher(engine, step_timeout=None)
            await batcher.start()
            task = asyncio.create_task(batcher.generate("x"))
            while not engine.plans:
                await asyncio.sleep(0.001)
    """,
    "blocking, not closed, known to hang": """
        batcher = BlockingBatcher.over(fake_batcher(engine, step_timeout=0.05))
        batcher.start()
        with contextlib.suppress(EngineFailedError):
            batcher.generate("x")
        async def main():
            pass
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("how", EXITS)
def test_the_interpreter_exits_while_a_step_hangs(how: str) -> None:
    script = textwrap.dedent(
        """
        import asyncio, contextlib, threading
        from pybatcher import BlockingBatcher, EngineFailedError
        from pybatcher.testing import FakeEngine, fake_batcher
        engine = FakeEngine(before_step=lambda plan: threading.Event().wait())
        """
    )
    script += textwrap.dedent(EXITS[how]) + "\nasyncio.run(main())\n"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr

"""The engine's thread: jobs in their order, one last one, and then no more."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import pytest

from pybatcher.scheduling import StepPlan
from pybatcher.serving.engine_executor import EngineExecutor
from pybatcher.serving.mailbox import Mailbox, Restarted, StepEnded
from pybatcher.testing import FakeClock, FakeEngine


class Recording(FakeEngine):
    """Notes on which thread each job ran."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[str, threading.Thread]] = []

    def step(self, plan: StepPlan) -> object:
        self.ran.append(("step", threading.current_thread()))
        return super().step(plan)

    def restart(self) -> None:
        self.ran.append(("restart", threading.current_thread()))
        super().restart()

    def close(self) -> None:
        self.ran.append(("close", threading.current_thread()))
        super().close()


def executor(engine: FakeEngine, **options: object) -> tuple[EngineExecutor, Mailbox]:
    mailbox = Mailbox(asyncio.get_running_loop())
    made = EngineExecutor(engine, mailbox, **{"timeout": None, "clock": time.monotonic, **options})
    made.open()
    return made, mailbox


async def messages(mailbox: Mailbox, n: int) -> list[object]:
    got: list[object] = []
    while len(got) < n:
        await mailbox.wait(None)
        got += mailbox.take_all()
    return got


async def test_jobs_run_in_order_on_one_other_thread_until_the_engine_is_closed() -> None:
    engine = Recording()
    made, mailbox = executor(engine)
    assert not made.is_busy
    made.begin_step(StepPlan((), 0, 0))
    assert made.is_busy
    assert made.job == "a step"
    made.begin_restart()
    ended, restarted = await messages(mailbox, 2)
    assert isinstance(ended, StepEnded)
    assert isinstance(restarted, Restarted)
    made.end_job()
    assert not made.is_busy
    assert await made.close() is None
    made.abandon()  # only the first end counts
    made.join(20)
    assert [name for name, _ in engine.ran] == ["step", "restart", "close"]
    (thread,) = {thread for _, thread in engine.ran}
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert not thread.is_alive()


async def test_what_the_engine_raises_is_a_message() -> None:
    class Broken(FakeEngine):
        def step(self, plan: StepPlan) -> object:
            raise KeyboardInterrupt

        def restart(self) -> None:
            raise MemoryError

        def close(self) -> None:
            raise OSError

    made, mailbox = executor(Broken())
    made.begin_step(StepPlan((), 0, 0))
    made.begin_restart()
    ended, restarted = await messages(mailbox, 2)
    assert isinstance(ended, StepEnded)
    assert isinstance(ended.outcome, KeyboardInterrupt)
    assert isinstance(restarted, Restarted)
    assert isinstance(restarted.error, MemoryError)
    assert isinstance(await made.close(), OSError)
    made.join(20)


async def test_it_keeps_nothing_of_a_job_that_is_done() -> None:
    class Plan(StepPlan):
        __slots__ = ("__weakref__",)

    engine = FakeEngine()
    made, mailbox = executor(engine)
    plan = Plan((), 0, 0)
    gone = weakref.ref(plan)
    made.begin_step(plan)
    del plan
    await messages(mailbox, 1)
    made.end_job()
    made.begin_restart()
    await messages(mailbox, 1)
    engine.plans.clear()
    gc.collect()
    assert gone() is None
    await made.close()
    made.join(20)


@pytest.mark.parametrize("limit", [None, 5.0])
async def test_a_job_is_overdue_after_its_time(limit: float | None) -> None:
    clock = FakeClock()
    made, mailbox = executor(FakeEngine(), timeout=limit, clock=clock)
    assert made.seconds_until_overdue is None
    made.begin_restart()
    clock.advance(4.0)
    left = made.seconds_until_overdue
    assert left == (None if limit is None else pytest.approx(1.0))
    clock.advance(2.0)
    late = made.seconds_until_overdue
    assert late == (None if limit is None else pytest.approx(-1.0))
    await messages(mailbox, 1)
    made.end_job()
    assert made.seconds_until_overdue is None
    await made.close()
    made.join(20)

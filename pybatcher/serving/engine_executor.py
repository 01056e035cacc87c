"""`EngineExecutor`: the engine and its thread. One job at a time; a message says that it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from ..scheduling import KvAllocator, StepPlan, StepResult
from .engine_thread import EngineThread
from .mailbox import Mailbox, Restarted, StepEnded

__all__ = ["EngineExecutor", "StepEngine"]


class StepEngine(KvAllocator, Protocol):
    """What a batcher needs of an engine."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""

    @property
    def progress(self) -> int:
        """Grows while a step is computed. May always be read, from any thread."""

    def step(self, plan: StepPlan) -> StepResult:
        """One forward pass. Blocks, with the GIL released."""

    def check_integrity(self) -> None:
        """Raise EngineError if the bookkeeping of sequences and KV blocks does not add up."""

    def restart(self) -> None:
        """Forget every sequence and all KV, whatever a call that failed left behind."""

    def close(self) -> None:
        """Free weights and KV."""


class EngineExecutor:
    """Made on the event loop it is to serve; for that loop's thread only, but for two methods.

    patience: seconds after which a job is overdue; None: never.
    clock: monotonic, seconds.
    """

    def __init__(
        self,
        engine: StepEngine,
        mailbox: Mailbox,
        *,
        patience: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine = engine
        self._mailbox = mailbox
        self._patience = patience
        self._clock = clock
        self._thread: EngineThread | None = None
        self._job = ""
        self._began = 0.0

    def open(self) -> None:
        """Start the thread."""
        self._thread = EngineThread("pybatcher-engine")

    @property
    def is_busy(self) -> bool:
        """A job is under way, and the engine belongs to it."""
        return bool(self._job)

    @property
    def job(self) -> str:
        """The job under way, in words."""
        return self._job

    @property
    def seconds_until_overdue(self) -> float | None:
        """Not above 0: the job under way is overdue. None: there is none, or no limit."""
        if not self._job or self._patience is None:
            return None
        return self._began + self._patience - self._clock()

    def begin_step(self, plan: StepPlan) -> None:
        """Compute. `StepEnded` comes, and then `end_job` is to be called."""
        self._begin("a step", partial(_step, self._engine, plan, self._mailbox, self._clock))

    def begin_restart(self) -> None:
        """Restart the engine. `Restarted` comes, and then `end_job` is to be called."""
        self._begin("a restart of the engine", partial(_restart, self._engine, self._mailbox))

    def end_job(self) -> None:
        """The job's message has come."""
        self._job = ""

    def close(self) -> asyncio.Future[BaseException | None]:
        """Close the engine, after the job it may be in. The future: what that raised."""
        closed: asyncio.Future[BaseException | None] = self._loop.create_future()
        assert self._thread is not None
        self._thread.stop(partial(_close, self._engine, self._loop, closed))
        return closed

    def abandon(self) -> None:
        """As `close`, where no loop runs any more. From any thread; never waits."""
        if self._thread is not None:
            self._thread.stop(self._engine.close)
        else:
            self._engine.close()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, so many seconds at most. From any thread."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _begin(self, what: str, job: Callable[[], None]) -> None:
        assert self._thread is not None
        self._job, self._began = what, self._clock()
        self._thread.run(job)


def _step(engine: StepEngine, plan: StepPlan, mailbox: Mailbox, clock: Callable[[], float]) -> None:
    """On the engine thread: compute, and say so."""
    outcome: StepResult | BaseException
    began = clock()
    try:
        outcome = engine.step(plan)
    except BaseException as error:  # whatever it is, the coordinator has to hear of it
        outcome = error
    mailbox.put_threadsafe(StepEnded(outcome, clock() - began))


def _restart(engine: StepEngine, mailbox: Mailbox) -> None:
    """On the engine thread: begin anew, and say so."""
    mailbox.put_threadsafe(Restarted(_error_of(engine.restart)))


def _close(
    engine: StepEngine,
    loop: asyncio.AbstractEventLoop,
    closed: asyncio.Future[BaseException | None],
) -> None:
    """On the engine thread: free everything, and say so."""
    error = _error_of(engine.close)
    with suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(_set_result, closed, error)


def _error_of(call: Callable[[], None]) -> BaseException | None:
    try:
        call()
    except BaseException as error:
        return error
    return None


def _set_result(future: asyncio.Future[BaseException | None], value: BaseException | None) -> None:
    if not future.done():
        future.set_result(value)

"""`EngineExecutor`: runs the engine on its own thread, one job at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from ..scheduling import KvAllocator, StepPlan, StepResult
from .mailbox import Mailbox, Restarted, StepEnded

__all__ = ["EngineExecutor", "StepEngine"]


class StepEngine(KvAllocator, Protocol):
    """The methods of an engine that a batcher needs."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids, which go from 0 to `vocab_size` - 1."""

    @property
    def progress(self) -> int:
        """A number that grows while a step is computed. May be read at any time, on any thread."""

    def step(self, plan: StepPlan) -> StepResult:
        """Compute one forward pass. Blocks, with the GIL released."""

    def check_integrity(self) -> None:
        """Raise EngineError if the bookkeeping of sequences and KV blocks is inconsistent."""

    def restart(self) -> None:
        """Drop every sequence and all KV, whatever state a failed call left behind."""

    def close(self) -> None:
        """Free weights and KV."""


_Job = Callable[[], None]


class EngineExecutor:
    """Runs the engine's jobs, one at a time, on a thread of its own.

    Construct it on the event loop that it serves, and call it on that loop's thread, except
    `abandon` and `join`. A message to the coordinator reports the end of each job. The thread is a
    daemon, so that a batcher that was not closed does not keep the interpreter from exiting. Jobs
    do not raise.

    timeout: seconds after which a job is overdue; None: never.
    clock: monotonic, seconds.
    """

    def __init__(
        self,
        engine: StepEngine,
        mailbox: Mailbox,
        *,
        timeout: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine = engine
        self._mailbox = mailbox
        self._timeout = timeout
        self._clock = clock
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._job = ""
        self._began = 0.0

    def open(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(
            target=_work, args=(self._jobs,), name="pybatcher-engine", daemon=True
        )
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """True while a job is under way; the job owns the engine."""
        return bool(self._job)

    @property
    def job(self) -> str:
        """The job under way, in words."""
        return self._job

    @property
    def seconds_until_overdue(self) -> float | None:
        """Seconds until the job under way is overdue; None without a job or a limit."""
        if not self._job or self._timeout is None:
            return None
        return self._began + self._timeout - self._clock()

    def begin_step(self, plan: StepPlan) -> None:
        """Compute a step. The message `StepEnded` follows; on it, call `end_job`."""
        self._begin("a step", partial(_step, self._engine, plan, self._mailbox, self._clock))

    def begin_restart(self) -> None:
        """Restart the engine. The message `Restarted` follows; on it, call `end_job`."""
        self._begin("a restart of the engine", partial(_restart, self._engine, self._mailbox))

    def end_job(self) -> None:
        """Release the engine after the message of its job."""
        self._job = ""

    def close(self) -> asyncio.Future[BaseException | None]:
        """Close the engine after the job under way. The future gets its exception, or None."""
        closed: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._stop(partial(_close, self._engine, self._loop, closed))
        return closed

    def abandon(self) -> None:
        """Close the engine after the job under way. For use without a loop: any thread, no wait."""
        if self._thread is not None:
            self._stop(self._engine.close)
        else:
            self._engine.close()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, at most `timeout` seconds. From any thread."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _begin(self, what: str, job: _Job) -> None:
        self._job, self._began = what, self._clock()
        self._jobs.put(job)

    def _stop(self, last_job: _Job) -> None:
        """Queue one last job and end the thread after it. Only the first call counts."""
        if not self._stopped:
            self._stopped = True
            self._jobs.put(last_job)
            self._jobs.put(None)


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    """Run jobs in order on the engine thread, until a None comes."""
    while (job := jobs.get()) is not None:
        job()
        del job  # frees the job's arguments before the thread waits for the next job


def _step(engine: StepEngine, plan: StepPlan, mailbox: Mailbox, clock: Callable[[], float]) -> None:
    """Compute a step, on the engine thread, and send `StepEnded`."""
    outcome: StepResult | BaseException
    began = clock()
    try:
        outcome = engine.step(plan)
    except BaseException as error:  # of any kind, because the coordinator waits for the message
        outcome = error
    mailbox.put_threadsafe(StepEnded(outcome, clock() - began))


def _restart(engine: StepEngine, mailbox: Mailbox) -> None:
    """Restart the engine, on its thread, and send `Restarted`."""
    mailbox.put_threadsafe(Restarted(_error_of(engine.restart)))


def _close(
    engine: StepEngine,
    loop: asyncio.AbstractEventLoop,
    closed: asyncio.Future[BaseException | None],
) -> None:
    """Close the engine, on its thread, and set the future on the loop."""
    error = _error_of(engine.close)
    with suppress(RuntimeError):  # the loop is closed, so no task waits for the future
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

"""`Coordinator`: the one task that owns a batcher's state.

It wakes on a message, handles all pending messages, plans a step, hands the plan to the engine
thread, and waits for the next message; a step's end is a message too. An idle coordinator uses no
CPU. It never waits for a caller.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ..calls.statistics import BatcherStatistics, Health
from ..calls.telemetry import Telemetry
from ..errors import BatcherClosedError, EngineError, PybatcherError
from ..params.config import SchedulerConfig, SupervisionConfig
from ..scheduling import Scheduler, own_copy
from ..scheduling.kv_allocator import blocks_for
from .engine_executor import EngineExecutor, StepEngine
from .mailbox import (
    Cancel,
    Close,
    ForgetImages,
    HoldPrefix,
    Mailbox,
    Message,
    PauseRequests,
    ReleasePrefix,
    Restarted,
    SharePrefix,
    StepEnded,
    WithdrawPrefix,
)
from .output_processor import OutputProcessor
from .prefix_names import PrefixNames
from .request_state import RequestState
from .supervision import Supervisor

__all__ = ["Coordinator"]


class Coordinator:
    """Reads the mailbox, runs the scheduler, and fills replies; the engine has its own thread.

    Construct it on the event loop that it runs on. Other threads may only call
    `mailbox.put_threadsafe`.
    supervision: limits of restarts of a failing engine, and of the duration of a step.
    clock: monotonic, seconds.
    """

    def __init__(
        self,
        engine: StepEngine,
        config: SchedulerConfig,
        supervision: SupervisionConfig,
        *,
        clock: Callable[[], float],
        telemetry: Telemetry,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._pid = os.getpid()
        self._engine = engine
        self._config = config
        self._clock = clock
        self._scheduler = Scheduler(config, engine)
        self.prefixes = PrefixNames(self._scheduler)
        self._telemetry = telemetry
        self._supervisor = Supervisor(supervision)
        self._outputs = OutputProcessor(self._scheduler, clock)
        self._defect: BaseException | None = None
        self._is_flushing = False
        self._rejected = 0
        self._closing = self._closed = False
        self._at_close: BatcherStatistics | None = None
        self._left_at_close: list[str] = []
        self.mailbox = Mailbox(self._loop)
        self._executor = EngineExecutor(
            engine, self.mailbox, timeout=supervision.step_timeout, clock=clock
        )
        self._handlers: dict[type[Message], Callable[[Any], None]] = {
            RequestState: self._submit,
            Cancel: self._cancel,
            PauseRequests: lambda one: self._scheduler.pause(one.request_ids, one.paused),
            SharePrefix: self._share_prefix,
            ForgetImages: self._forget_images,
            HoldPrefix: self.prefixes.handle,
            WithdrawPrefix: self.prefixes.handle,
            ReleasePrefix: self.prefixes.handle,
            StepEnded: self._end_step,
            Restarted: self._end_restart,
            Close: self._close,
        }

    # -- for the batcher --------------------------------------------------------------------

    def share_prefix(self, tokens: tuple[int, ...]) -> None:
        """Keep the KV of the batcher's own prefix, for prompts of every namespace.

        Only before `run`; later, send `SharePrefix`.
        """
        self._scheduler.add_prefix(tokens, namespace=None)

    def check_open(self) -> None:
        """Raise the error that a request sent now would get.

        BatcherClosedError if the batcher closes, EngineFailedError if the engine is broken.
        """
        if self._closing:
            raise BatcherClosedError("the batcher is closed; start another")
        if self._supervisor.failure is not None:
            raise own_copy(self._supervisor.failure)

    def health(self) -> Health:
        """Return whether requests are served."""
        reason = self._supervisor.reason(self._clock())
        if self._closed:
            return Health("closed", "the batcher was closed")
        if self._supervisor.failure is not None:
            return Health("failed" if self._supervisor.status == "failed" else "hung", reason)
        if self._closing:
            return Health("closing", "requests in flight are being finished")
        return Health("ready", reason)

    def statistics(self) -> BatcherStatistics:
        """Return the counts since the start; after the end the last counts."""
        return self._at_close or self._statistics_now()

    def _statistics_now(self) -> BatcherStatistics:
        counts = self._scheduler.statistics()
        return BatcherStatistics(
            **asdict(counts),
            generated_tokens=self._outputs.generated_tokens,
            rejected=self._rejected,
            restarts=self._supervisor.restarts,
            kv_total_blocks=self._engine.kv_total_blocks,
            kv_free_blocks=self._engine.kv_free_blocks,
            kv_cached_blocks=self._engine.kv_cached_blocks,
        )

    def check_idle(self) -> None:
        """Raise an EngineError that names leftovers: requests, and KV blocks that no prefix holds.

        After the end of `run`: the leftovers after every request had ended and every prefix was
            dropped. KV of an engine that was busy or broken then is not checked.
        """
        left = self._left_at_close if self._closed else self._left(self._outputs.n_open)
        if left:
            raise EngineError("the batcher is not idle: " + "; ".join(left))

    def _left(self, n_open: int) -> list[str]:
        left = [f"{n_open} requests have not ended"] if n_open else []
        if self._executor.is_busy or self._supervisor.failure is not None:
            return left  # a step in progress or a failed engine owns the KV
        engine = self._engine
        kept = sum(
            blocks_for(prefix.num_computed_tokens, engine.block_size)
            for prefix in self._scheduler.prefixes
        )
        used = engine.kv_total_blocks - engine.kv_free_blocks - engine.kv_cached_blocks
        if used > kept:
            left.append(f"{used} KV blocks are held, of which prefixes account for {kept}")
        try:
            engine.check_integrity()
        except EngineError as error:
            left.append(str(error))
        return left

    def heartbeat(self) -> tuple[bool, int]:
        """Return whether the engine has a job under way, and the progress it reports."""
        return self._executor.is_busy, self._engine.progress

    async def run(self) -> None:
        """Serve until closed; then every request has ended, and thread, engine and KV are freed.

        If this task is cancelled, as `asyncio.run` does at its end, or a step hangs, every request
        fails, and nothing waits for the engine thread: it closes the engine after its step.
        """
        self._executor.open()
        try:
            await self._serve()
        finally:
            if os.getpid() == self._pid:  # a fork has no engine thread that could close the engine
                self._end_all()
                engine_closed = self._executor.close()
        if self._supervisor.status == "hung":
            return
        error = await engine_closed
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Close without draining: the batcher was garbage-collected, or the interpreter exits.

        From any thread. Waits for the step under way unless that blocks the loop: a thread that is
        computing when the interpreter ends would crash it. Does not wait for a step that hangs.
        """
        if os.getpid() != self._pid:
            return  # a forked child has a copy of this object, but no loop and no engine thread
        if self._loop.is_running():
            self.mailbox.put_threadsafe(Close(drain=False))
            if threading.get_ident() == self._loop_thread:
                return
        else:
            self._executor.abandon()
        if self._supervisor.status != "hung":
            self._executor.join(_EXIT_TIMEOUT)

    # -- the loop ---------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Handle messages and begin steps until the batcher is closed.

        An exception here belongs to no request: the engine counts as failed.
        """
        while True:
            for message in self.mailbox.take_all():
                try:
                    self._handlers[type(message)](message)
                except Exception as error:
                    self._engine_failed(error)
            try:
                self._act()
            except Exception as error:
                self._engine_failed(error)
            if self._is_over():
                return
            await self.mailbox.wait(self._seconds_until_due())

    def _submit(self, state: RequestState) -> None:
        """Schedule a request, unless another sample of its reply has failed.

        An exception here ends only that request.
        """
        try:
            self.check_open()
            if not state.reply.failed:
                self._scheduler.submit(state.request, self._clock())
                self._outputs.add(state)
                if state.reply.is_paused:
                    self._scheduler.pause([state.request.request_id], True)
        except Exception as error:
            self._rejected += 1
            self._outputs.refuse(state, error)

    def _cancel(self, message: Cancel) -> None:
        self._outputs.cancel(message.request_id)

    def _share_prefix(self, message: SharePrefix) -> None:
        with suppress(PybatcherError):  # each prompt that begins with the prefix gets the error
            self._scheduler.add_prefix(message.tokens, namespace=None)

    def _forget_images(self, _: ForgetImages) -> None:
        """Restart the engine, which drops all KV; requests continue after it."""
        self._scheduler.forget_images()
        self._engine_failed(EngineError("the ids of images were used up, and begin again"))

    def _close(self, message: Close) -> None:
        self._closing = True
        if not message.drain:
            self._outputs.process(self._scheduler.fail_all(_closed_under_request()))

    def _act(self) -> None:
        """Begin a step if one is due. If the job under way is overdue, refuse all requests."""
        self.prefixes.settle(self._supervisor.failure)
        overdue_in = self._executor.seconds_until_overdue
        if overdue_in is not None and overdue_in <= 0 and self._supervisor.status != "hung":
            self._supervisor.overdue(self._executor.job, self._clock())
            self._refuse_all()
        if self._executor.is_busy or self._supervisor.failure is not None or self._is_over():
            return
        if not self._is_due():
            return
        now = self._clock()
        plan = self._scheduler.plan(now)
        self._outputs.process(self._scheduler.take_events())
        self.prefixes.settle(None)  # a prefix that could not be planned has failed
        self._is_flushing = plan is not None
        if plan is not None:
            self._telemetry.step_began(plan, now)
            self._executor.begin_step(plan)

    def _end_step(self, message: StepEnded) -> None:
        """Apply and deliver the result of a step; or restart the engine."""
        outcome = message.outcome
        self._executor.end_job()
        defect, self._defect = self._defect, None
        if self._supervisor.status == "hung":
            self._hang_ended()
        elif isinstance(outcome, BaseException):
            self._engine_failed(outcome)
        elif defect is not None:
            self._engine_failed(defect)
        else:
            self._outputs.process(self._scheduler.apply(outcome, self._clock()))
            self._telemetry.step_ended(
                message.engine_seconds, self._scheduler.statistics, self._engine
            )

    def _end_restart(self, message: Restarted) -> None:
        self._executor.end_job()
        if message.error is None:
            self._defect = None
            self._supervisor.restarted()
        elif self._supervisor.status == "hung":
            self._hang_ended()
        else:
            self._engine_failed(message.error)

    def _is_due(self) -> bool:
        """Return whether a step is due now.

        A step is always due while requests run. When idle, it is due if `batch_size` requests wait,
        or the first of them has waited for `batch_timeout`; then all waiting requests are served
        before the next idle time. There is no wait that would take half of the time to a deadline.
        """
        wait = self._seconds_until_due()
        due = wait is not None and wait <= 0
        return due or self._is_flushing or not self._scheduler.is_idle

    def _seconds_until_due(self) -> float | None:
        """Return the seconds until the coordinator must act without a message; None: never."""
        if self._executor.is_busy:
            is_known = self._supervisor.status == "hung"
            return None if is_known else self._executor.seconds_until_overdue
        if self._supervisor.failure is not None:
            return None
        since, due = self._scheduler.waiting_since, self._scheduler.resumes_at
        if since is not None:
            if self._closing or self._scheduler.n_waiting >= self._config.batch_size:
                return 0.0
            due = since + self._config.batch_timeout
        if due is None:
            return None
        deadline = self._scheduler.next_deadline
        if since is not None and deadline is not None and deadline - since < 2 * (due - since):
            return 0.0
        return max(0.0, min(due, due if deadline is None else deadline) - self._clock())

    def _is_over(self) -> bool:
        if not self._closing:
            return False
        counts = self._scheduler.statistics()
        if counts.queued or counts.running:
            return False
        return not self._executor.is_busy or self._supervisor.status == "hung"

    # -- outcomes ---------------------------------------------------------------------------

    def _engine_failed(self, error: BaseException) -> None:
        """Restart the engine and resume all requests; after too many restarts, refuse them.

        If the engine is busy, this is done when its job has ended.
        """
        if self._executor.is_busy:
            self._defect = error
            return
        self._outputs.process(self._scheduler.step_failed(error))
        if self._supervisor.failed(error, self._clock()):
            self._executor.begin_restart()
        else:
            self._refuse_all()

    def _hang_ended(self) -> None:
        """Restart the engine after a hung job has ended, if allowed; drop the job's results.

        The requests of that job failed when the hang was detected.
        """
        self._scheduler.step_failed(TimeoutError())
        if self._supervisor.hang_ended(self._clock()):
            self._executor.begin_restart()

    def _refuse_all(self) -> None:
        """Fail every request with the supervisor's failure; `check_open` refuses later ones."""
        assert self._supervisor.failure is not None
        self._telemetry.failed(self._supervisor.failure)
        self._outputs.process(self._scheduler.fail_all(self._supervisor.failure))
        self.prefixes.settle(self._supervisor.failure)

    def _end_all(self) -> None:
        """Fail every remaining request; free KV unless the engine is busy or broken."""
        self._closing = self._closed = True
        with suppress(Exception):  # every caller gets an end, whatever state the scheduler is in
            self._outputs.process(self._scheduler.fail_all(_closed_under_request()))
        forgotten = self._outputs.n_open  # requests that the scheduler has lost, which is a defect
        self._outputs.fail_rest(_closed_under_request())
        with suppress(Exception):
            self.prefixes.settle(_closed_under_request())
        for message in self.mailbox.take_all():
            if isinstance(message, RequestState):
                self._outputs.refuse(message, _closed_under_request())
            else:
                self.prefixes.refuse(message, _closed_under_request())
        if not self._executor.is_busy and self._supervisor.failure is None:
            with suppress(EngineError):
                self._scheduler.drop_prefixes()
        with suppress(EngineError):  # a closed engine raises when its KV is queried
            self._at_close = self._statistics_now()
            self._left_at_close = self._left(forgotten)


_EXIT_TIMEOUT = 5.0
"""Seconds that an exiting interpreter waits for the step under way."""


def _closed_under_request() -> BatcherClosedError:
    return BatcherClosedError("the batcher was closed before this request was finished")

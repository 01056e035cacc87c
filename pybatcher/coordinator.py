"""`Coordinator`: the one task that owns a batcher's state.

It wakes on a message, handles all there are, plans, hands the plan to the
engine thread, and goes back to sleep; a step's end is a message too. Idle, it
waits for mail and costs nothing. It never waits for a caller.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Protocol

from .config import SchedulerConfig
from .delivery import Delivery
from .engine_thread import EngineThread
from .errors import (
    BatcherClosedError,
    EngineError,
    EngineFailedError,
    PybatcherError,
    RequestTooLongError,
)
from .mailbox import Cancel, Close, Mailbox, Message, SharePrefix, StepEnded, Submit
from .scheduling import (
    Admitted,
    Event,
    Expired,
    Failed,
    Generated,
    KvBook,
    Scheduler,
    StepPlan,
    StepResult,
    own_copy,
)
from .statistics import BatcherStatistics, Health
from .telemetry import Telemetry
from .text import Tokenizer

__all__ = ["Coordinator", "StepEngine"]


class StepEngine(KvBook, Protocol):
    """What a batcher needs of an engine."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""

    def step(self, plan: StepPlan) -> StepResult:
        """One forward pass. Blocks, with the GIL released."""

    def restart(self) -> None:
        """Forget every sequence and all cached KV, whatever a failed call left; weights stay."""

    def close(self) -> None:
        """Free weights and KV."""


class Coordinator:
    """Mailbox in, replies out; in between a scheduler, and an engine on its own thread.

    Made on the event loop it is to run on. Everything but `mailbox` (its
    `put_threadsafe`) is for that loop's thread only.

    reserved_sequences: how many shared prefixes there can be.
    clock: monotonic, seconds.
    """

    def __init__(
        self,
        engine: StepEngine,
        tokenizer: Tokenizer,
        config: SchedulerConfig,
        *,
        reserved_sequences: int,
        clock: Callable[[], float],
        telemetry: Telemetry,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._pid = os.getpid()
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config
        self._clock = clock
        self._telemetry = telemetry
        self._scheduler = Scheduler(config, engine, reserved_sequences=reserved_sequences)
        self._thread: EngineThread | None = None
        self._deliveries: dict[int, Delivery] = {}
        self._step_is_running = False
        self._failure: EngineFailedError | None = None
        self._rejected = 0
        self._closing = self._closed = False
        self.mailbox = Mailbox(self._loop)

    # -- for the batcher --------------------------------------------------------------------

    def share_prefix(self, tokens: tuple[int, ...]) -> None:
        """See `Scheduler.share_prefix`. Before `run`; later, send `SharePrefix`."""
        self._scheduler.share_prefix(tokens)

    def check_open(self) -> None:
        """Raise what a request that is sent now would get: closed, or the engine is broken."""
        if self._closing:
            raise BatcherClosedError("the batcher is closed; start another")
        if self._failure is not None:
            raise own_copy(self._failure)

    def health(self) -> Health:
        """Whether requests are served."""
        if self._closed:
            return Health("closed", "the batcher was closed")
        if self._failure is not None:
            return Health("failed", str(self._failure))
        if self._closing:
            return Health("closing", "requests in flight are being finished")
        return Health("ready", "requests are served")

    def statistics(self) -> BatcherStatistics:
        """See `BatcherStatistics`."""
        counts = self._scheduler.statistics()
        return BatcherStatistics(
            **asdict(counts),
            rejected=self._rejected,
            kv_total_blocks=self._engine.kv_total_blocks,
            kv_free_blocks=self._engine.kv_free_blocks,
            kv_cached_blocks=self._engine.kv_cached_blocks,
        )

    async def run(self) -> None:
        """Serve until closed. Then nothing is left: no request, no KV, no thread, no engine.

        Cancelled (as `asyncio.run` does with what is left at its end), it fails
        every request and does not wait for the engine thread, which closes the
        engine after the step it may be in.
        """
        thread = self._thread = EngineThread("pybatcher-engine")
        try:
            await self._serve(thread)
        finally:
            self._end_all()
            engine_closed = self._loop.create_future()
            thread.stop(partial(_close_engine, self._engine, self._loop, engine_closed))
        error = await engine_closed
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Nobody holds the batcher any more, or the interpreter exits. From any thread.

        Waits for the step under way, where that does not hold up the loop: a
        thread that is computing must not meet the end of the interpreter.
        """
        if os.getpid() != self._pid:
            return  # a forked child has this object, but neither the loop nor the thread
        if self._loop.is_running():
            self.mailbox.put_threadsafe(Close(drain=False))
            if threading.get_ident() == self._loop_thread:
                return
        elif self._thread is not None:
            self._thread.stop(self._engine.close)
        else:
            self._engine.close()
        if self._thread is not None:
            self._thread.join(_EXIT_PATIENCE)

    # -- the loop ---------------------------------------------------------------------------

    async def _serve(self, thread: EngineThread) -> None:
        while True:
            try:
                for message in self.mailbox.take_all():
                    self._handle(message)
                if self._is_over():
                    return
                self._begin_step_if_due(thread)
            except Exception as error:  # a defect of ours, or of the engine between steps
                self._break(error)
            await self.mailbox.wait(self._seconds_until_due())

    def _handle(self, message: Message) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Cancel(request_id):
                if (delivery := self._deliveries.pop(request_id, None)) is not None:
                    delivery.cancelled()
                self._scheduler.cancel(request_id)
            case SharePrefix(tokens):
                with suppress(RequestTooLongError):  # then so is each prompt that has it
                    self._scheduler.share_prefix(tokens)
            case StepEnded(outcome, engine_seconds):
                self._end_step(outcome, engine_seconds)
            case Close(drain):
                self._closing = True
                if not drain:
                    self._deliver(self._scheduler.fail_all(_closed_under_request()))

    def _submit(self, message: Submit) -> None:
        request, now = message.request, self._clock()
        try:
            self.check_open()
            delivery = Delivery(
                request, message.reply, self._tokenizer, message.submitted, self._telemetry
            )
            self._scheduler.submit(request, now)
        except PybatcherError as error:
            self._rejected += 1
            message.reply.fail(error)
        else:
            self._deliveries[request.request_id] = delivery

    def _begin_step_if_due(self, thread: EngineThread) -> None:
        if self._step_is_running or self._failure is not None or not self._is_due():
            return
        now = self._clock()
        plan = self._scheduler.plan(now)
        self._deliver(self._scheduler.take_events())
        if plan is not None:
            self._step_is_running = True
            self._telemetry.step_began(plan, now)
            thread.run(partial(_step, self._engine, plan, self.mailbox, self._clock))

    def _end_step(self, outcome: StepResult | BaseException, engine_seconds: float) -> None:
        self._step_is_running = False
        if isinstance(outcome, BaseException):
            self._break(outcome)
        elif self._failure is not None:
            self._scheduler.abandon_step()
        else:
            self._deliver(self._scheduler.apply(outcome, self._clock()))
            self._telemetry.step_ended(engine_seconds, self._scheduler.statistics, self._engine)

    def _is_due(self) -> bool:
        """Busy: always. Idle: when enough wait, or the first has waited long enough."""
        wait = self._seconds_until_due()
        return not self._scheduler.is_idle or (wait is not None and wait <= 0)

    def _seconds_until_due(self) -> float | None:
        """Until an idle coordinator has to act without mail; None: it need not."""
        since = self._scheduler.waiting_since
        if self._step_is_running or self._failure is not None or since is None:
            return None
        if self._closing or self._scheduler.n_waiting >= self._config.batch_size:
            return 0.0
        due = since + self._config.batch_timeout
        deadline = self._scheduler.next_deadline
        return max(0.0, min(due, due if deadline is None else deadline) - self._clock())

    def _is_over(self) -> bool:
        counts = self._scheduler.statistics()
        return self._closing and not (self._step_is_running or counts.queued or counts.running)

    # -- outcomes ---------------------------------------------------------------------------

    def _deliver(self, events: list[Event]) -> None:
        """Pass events on. Whatever goes wrong with one request ends that one only."""
        for event in events:
            delivery = self._deliveries.get(event.request_id)
            if delivery is None:
                continue
            try:
                ended = self._deliver_one(event, delivery)
            except Exception as error:
                own = EngineError(f"the tokens of this request could not be delivered: {error!r}")
                own.__cause__ = error
                delivery.fail(own)
                self._scheduler.fail(event.request_id)
                ended = True
            if ended:
                del self._deliveries[event.request_id]

    def _deliver_one(self, event: Event, delivery: Delivery) -> bool:
        """True if the request has ended with it."""
        match event:
            case Admitted(_, cached_tokens):
                delivery.admitted(cached_tokens, self._clock())
                return False
            case Generated(request_id, token, finish_reason):
                ended = delivery.token(token, finish_reason, self._clock())
                if ended and finish_reason is None:
                    self._scheduler.finish(request_id)
                return ended
            case Expired():
                delivery.expire(self._clock())
                return True
            case Failed(_, error):
                delivery.fail(error)
                return True

    def _break(self, error: BaseException) -> None:
        """The engine cannot be trusted any more: every request fails, and every later one."""
        if self._failure is None:
            self._failure = EngineFailedError(
                f"the engine failed: {error!r}; close this batcher and start another"
            )
            self._failure.__cause__ = error
        if not self._step_is_running:
            self._scheduler.abandon_step()
        self._deliver(self._scheduler.fail_all(self._failure))

    def _end_all(self) -> None:
        """Every request that is left fails; KV is freed, unless the engine is in a step."""
        self._closing = self._closed = True
        with suppress(EngineError):
            self._deliver(self._scheduler.fail_all(_closed_under_request()))
        for delivery in self._deliveries.values():
            delivery.fail(_closed_under_request())
        self._deliveries.clear()
        for message in self.mailbox.take_all():
            if isinstance(message, Submit):
                message.reply.fail(_closed_under_request())
        if not self._step_is_running:
            with suppress(EngineError):
                self._scheduler.drop_prefixes()


_EXIT_PATIENCE = 5.0
"""Seconds that an exiting interpreter waits for the step under way."""


def _closed_under_request() -> BatcherClosedError:
    return BatcherClosedError("the batcher was closed before this request was finished")


def _step(engine: StepEngine, plan: StepPlan, mailbox: Mailbox, clock: Callable[[], float]) -> None:
    """On the engine thread: compute, and say so."""
    outcome: StepResult | BaseException
    began = clock()
    try:
        outcome = engine.step(plan)
    except BaseException as error:  # whatever it is, the coordinator has to hear of it
        outcome = error
    mailbox.put_threadsafe(StepEnded(outcome, clock() - began))


def _close_engine(
    engine: StepEngine,
    loop: asyncio.AbstractEventLoop,
    closed: asyncio.Future[BaseException | None],
) -> None:
    """On the engine thread: free everything, and say so."""
    error: BaseException | None = None
    try:
        engine.close()
    except BaseException as raised:
        error = raised
    with suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(_set_result, closed, error)


def _set_result(future: asyncio.Future[BaseException | None], value: BaseException | None) -> None:
    if not future.done():
        future.set_result(value)

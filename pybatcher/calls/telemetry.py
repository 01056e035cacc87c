"""`Telemetry`: what a batcher tells of its steps and requests, to those who attach. No asyncio.

    detach = batcher.attach(print)      # StepEvent(...), RequestEvent(...), ...
    detach()

`pybatcher.metrics` and `pybatcher top` are such handlers.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from ..errors import ConfigError, EngineFailedError
from ..scheduling import KvAllocator, SchedulerStatistics, StepPlan

__all__ = ["Handler", "RequestEvent", "StepEvent", "Telemetry", "TelemetryEvent"]

_LOGGER = logging.getLogger("pybatcher")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """A step is over: its tokens are with their callers.

    when: on the batcher's clock, as all times of `Timeline`.
    seconds: from planning the step to having delivered what it gave.
    engine_seconds: of these, inside the engine, measured on its thread.
    decode_rows, prefill_rows, draft_rows: the batch; its rows are their sum.
    n_sequences: how many had rows in it.
    queued, queued_tokens, running: requests, and the tokens that they came with and that
        wait, after it.
    kv_total_blocks, kv_free_blocks, kv_cached_blocks: after it; the rest is in use.

    A step that the engine could not do has no event.
    """

    when: float
    seconds: float
    engine_seconds: float
    decode_rows: int
    prefill_rows: int
    draft_rows: int
    n_sequences: int
    queued: int
    queued_tokens: int
    running: int
    kv_total_blocks: int
    kv_free_blocks: int
    kv_cached_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEvent:
    """A request is over. Each one that was accepted into the queue gives exactly one of these,
    and each whose `output` had ended already.

    when: on the batcher's clock, as all times of `Timeline`.
    namespace, priority: as asked for; no namespace is "".
    finish_reason: "stop", "length" or "deadline" where there is a completion,
        "scored" or "embedded" where there is an answer, "cancelled", or the name of the
        error's type ("EngineFailedError", ...).
    prompt_tokens, cached_tokens, generated_tokens: as in `Usage`.
    queued: seconds until it was admitted, or, where it never was, until it ended.
    ttft: seconds from submit to the first token; None where none came.
    itl: the gaps between neighbouring tokens, in seconds.
    total: seconds from submit to this end.
    preemptions, recomputed_tokens: how often it gave its KV up, and how many
        tokens were computed again for that.
    """

    when: float
    request_id: int
    namespace: str
    priority: int
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    queued: float
    ttft: float | None
    itl: tuple[float, ...]
    total: float
    preemptions: int
    recomputed_tokens: int


TelemetryEvent = StepEvent | RequestEvent

Handler = Callable[[TelemetryEvent], object]
"""Gets every event; what it returns is ignored."""


class Telemetry:
    """The handlers of one batcher. With none, nothing is built and nothing is asked.

    clock: monotonic, seconds.
    on_failure: see `Batcher`.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_failure: Callable[[EngineFailedError], object] | None = None,
    ) -> None:
        self.now = clock
        self._on_failure = on_failure
        # By a key of its own each, so that one function can be there twice. Single operations on
        # a dict are whole under threads: handlers come and go from any of them.
        self._handlers: dict[int, Handler] = {}
        self._keys = count()
        self._step: tuple[StepPlan, float] | None = None

    @property
    def has_handlers(self) -> bool:
        """Events are worth building."""
        return bool(self._handlers)

    def attach(self, handler: Handler) -> Callable[[], None]:
        """See `Batcher.attach`."""
        if not callable(handler) or inspect.iscoroutinefunction(handler):
            raise ConfigError(
                f"handler is {handler!r}; it must be a function of one event, and no coroutine "
                "function: to await, let it put the event into a queue"
            )
        key = next(self._keys)
        self._handlers[key] = handler

        def detach() -> None:
            self._handlers.pop(key, None)

        return detach

    def emit(self, event: TelemetryEvent) -> None:
        """Tell all handlers; one that raises is detached and does not harm anybody."""
        for key, handler in list(self._handlers.items()):
            try:
                if key in self._handlers:  # no other handler has detached it meanwhile
                    handler(event)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # a CancelledError too: it would end the batcher's own task
                self._handlers.pop(key, None)
                _LOGGER.exception("a telemetry handler raised and is detached: %r", handler)

    def failed(self, error: EngineFailedError) -> None:
        """The engine has failed for good, or hangs. Nobody else knows yet."""
        if self._on_failure is not None:
            try:
                self._on_failure(error)
            except Exception:
                _LOGGER.exception("on_failure raised: %r", self._on_failure)

    def step_began(self, plan: StepPlan, planning_began: float) -> None:
        """The plan goes to the engine."""
        self._step = (plan, planning_began) if self._handlers else None

    def step_ended(
        self, engine_seconds: float, statistics: Callable[[], SchedulerStatistics], kv: KvAllocator
    ) -> None:
        """What the step gave is delivered."""
        if self._step is None:
            return
        (plan, began), counts, now = self._step, statistics(), self.now()
        self.emit(
            StepEvent(
                when=now,
                seconds=now - began,
                engine_seconds=engine_seconds,
                decode_rows=plan.decode_rows,
                prefill_rows=plan.prefill_rows,
                draft_rows=plan.draft_rows,
                n_sequences=len(plan.entries),
                queued=counts.queued,
                queued_tokens=counts.queued_tokens,
                running=counts.running,
                kv_total_blocks=kv.kv_total_blocks,
                kv_free_blocks=kv.kv_free_blocks,
                kv_cached_blocks=kv.kv_cached_blocks,
            )
        )

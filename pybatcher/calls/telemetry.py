"""`Telemetry`: events of a batcher's steps and requests, for attached handlers. No asyncio.

    detach = batcher.attach(print)      # StepEvent(...), RequestEvent(...), ...
    detach()

`pybatcher.metrics` and `pybatcher top` use such handlers.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count

from ..errors import ConfigError, EngineFailedError
from ..errors.checks import short
from ..scheduling import KvAllocator, SchedulerStatistics, StepPlan
from .scores import Embedding

__all__ = [
    "CURRENT_COUNTS",
    "CallCounts",
    "Handler",
    "RequestEvent",
    "StepEvent",
    "Telemetry",
    "TelemetryEvent",
    "check_attachable",
]

_LOGGER = logging.getLogger("pybatcher")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """The end of a step, after its tokens were delivered. A step that failed has no event.

    when: time on the batcher's clock, as all times of `Timeline`.
    seconds: from the beginning of planning to the end of delivery.
    engine_seconds: the part inside the engine, measured on its thread.
    decode_rows, prefill_rows, draft_rows: rows of the batch, by kind.
    n_sequences: number of sequences with rows in the step.
    queued, running: numbers of requests after the step.
    queued_tokens: tokens of the queued requests, prompts and outputs that they came with.
    kv_total_blocks, kv_free_blocks, kv_cached_blocks: KV blocks after the step; the rest is in use.
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
    """The end of a request.

    Each request that was accepted into the queue has exactly one such event, and so has each
    request whose given `output` had already ended.

    request_id: the id of the request, unique in its batcher or sidecar.
    kind: "chat", "generate", "score" or "embed".
    trace_headers: the trace headers of the call, with names in lower case; {} without a trace.
    max_tokens, temperature, top_p: sampling parameters of the request.
    when: time on the batcher's clock, as all times of `Timeline`.
    namespace, priority: options of the call; "" is the common namespace.
    finish_reason: "stop", "length" or "deadline" with a completion, "scored" or "embedded" with an
        answer, "cancelled", or the name of the error's type ("EngineFailedError", ...).
    prompt_tokens, cached_tokens, generated_tokens: as in `Usage`.
    queued: seconds until the request was admitted, or until it ended if it never was.
    ttft: seconds from submit to the first token; None without a token.
    itl: the gaps between neighbouring tokens, in seconds.
    total: seconds from submit to the end.
    preemptions, recomputed_tokens: how often the request gave up its KV, and how many tokens were
        computed again because of that.
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
    kind: str = "generate"
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    max_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0


TelemetryEvent = StepEvent | RequestEvent
"""Any event of a batcher: the argument of the functions that `attach` takes."""


class CallCounts:
    """The tokens and times of one request to a server, summed over all calls that it makes.

    A server sets it as `CURRENT_COUNTS`, and the replies of the calls add to it.

    began: time of the arrival of the request, in seconds of `time.monotonic`.
    prompt_tokens: tokens of the prompts of finished calls. None: no call has finished.
    completion_tokens: generated tokens; of streams that did not finish, those that arrived. None:
        nothing was generated.
    ttft: seconds to the first token: of a stream from `began`, else from the submission of the
        call. None: there was no token.
    """

    __slots__ = ("began", "completion_tokens", "prompt_tokens", "ttft")

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.ttft: float | None = None

    def add_prompt(self, n_tokens: int) -> None:
        """Count the tokens of a prompt."""
        self.prompt_tokens = n_tokens + (self.prompt_tokens or 0)

    def add_prompts_of(self, answer: object) -> None:
        """Count the prompts of an answer to a question if it is a list of embeddings."""
        if isinstance(answer, list) and answer and isinstance(answer[0], Embedding):
            self.add_prompt(sum(one.prompt_tokens for one in answer))

    def add_output(self, n_tokens: int, ttft: float | None = None) -> None:
        """Count generated tokens. ttft: None if the first of them arrived now."""
        if self.ttft is None:
            self.ttft = time.monotonic() - self.began if ttft is None else ttft
        self.completion_tokens = n_tokens + (self.completion_tokens or 0)


CURRENT_COUNTS: ContextVar[CallCounts | None] = ContextVar("pybatcher_counts", default=None)
"""The counts that calls of this task, and of tasks started by it, add to; None: nobody counts."""

Handler = Callable[[TelemetryEvent], object]
"""A function that is called with every event; its result is ignored."""


def check_attachable(batcher: object) -> None:
    """Raise ConfigError for an object that is no batcher and takes no handlers."""
    if isinstance(batcher, type) or not callable(getattr(batcher, "attach", None)):
        raise ConfigError(
            f"batcher is {short(batcher)}; it must be a Batcher, a BlockingBatcher or a client of "
            "a sidecar"
        )


class Telemetry:
    """The handlers of one batcher. Without handlers no events are built.

    clock: monotonic, seconds.
    on_failure: called with the error when the engine has failed for good, or hangs.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_failure: Callable[[EngineFailedError], object] | None = None,
    ) -> None:
        self.now = clock
        self._on_failure = on_failure
        # Each handler has a key of its own, so that one function can be attached twice. Handlers
        # are attached and detached from any thread: single operations on a dict are atomic.
        self._handlers: dict[int, Handler] = {}
        self._keys = count()
        self._step: tuple[StepPlan, float] | None = None

    @property
    def has_handlers(self) -> bool:
        """True if there are handlers, so that events must be built."""
        return bool(self._handlers)

    def attach(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event from now on. Return a function that detaches it.

        From any thread. Raises ConfigError for an object that cannot be called with one event.
        """
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
        """Call all handlers. A handler that raises is detached, and the log "pybatcher" gets a
        line.
        """
        for key, handler in list(self._handlers.items()):
            try:
                if key in self._handlers:  # another handler may have detached it just now
                    handler(event)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # also a CancelledError, which would end the batcher's own task
                self._handlers.pop(key, None)
                _LOGGER.exception("a telemetry handler raised and is detached: %r", handler)

    def failed(self, error: EngineFailedError) -> None:
        """Call `on_failure`, because the engine has failed for good or hangs."""
        if self._on_failure is not None:
            try:
                self._on_failure(error)
            except Exception:
                _LOGGER.exception("on_failure raised: %r", self._on_failure)

    def step_began(self, plan: StepPlan, planning_began: float) -> None:
        """Note the plan and the times of a step, before the engine computes it."""
        self._step = (plan, planning_began) if self._handlers else None

    def step_ended(
        self, engine_seconds: float, statistics: Callable[[], SchedulerStatistics], kv: KvAllocator
    ) -> None:
        """Emit the `StepEvent` of the step that was delivered, if there are handlers."""
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

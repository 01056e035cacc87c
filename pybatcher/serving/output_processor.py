"""`OutputProcessor`: passes the scheduler's events to the states of the requests in flight."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ..calls.reply import Reply
from ..errors import EngineError, PybatcherError
from ..scheduling import (
    Admitted,
    Answered,
    Expired,
    Failed,
    Generated,
    Preempted,
    Resumed,
    Scheduler,
    SchedulerEvent,
    own_copy,
)
from .request_state import RequestState

__all__ = ["OutputProcessor"]

_LOGGER = logging.getLogger("pybatcher")


class OutputProcessor:
    """Holds the `RequestState` of each request that has not ended. For the coordinator's task.

    It ends a request in the scheduler if the request state ends it: at a stop text, because a token
    could not be delivered, or because another sample of its reply failed.

    generated_tokens: number of tokens delivered, of all requests so far.
    clock: monotonic, seconds.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._open: dict[int, RequestState] = {}
        self.generated_tokens = 0

    @property
    def n_open(self) -> int:
        """Number of requests that have not ended."""
        return len(self._open)

    def add(self, state: RequestState) -> None:
        """Register the state of a request that the scheduler has accepted, to get its events."""
        self._open[state.request.request_id] = state

    def refuse(self, state: RequestState, error: Exception) -> None:
        """Fail the reply of a request that was not submitted. Emits no event.

        An exception that is no PybatcherError becomes an EngineError with that cause.
        """
        if not isinstance(error, PybatcherError):
            error = _typed(f"this request could not be taken: {error!r}", error)
        self._fail(state.reply, error)
        self._end_siblings(state)

    def cancel(self, request_id: int) -> None:
        """Drop a request, so that its reply gets no further results; do nothing if it has ended."""
        if (state := self._open.pop(request_id, None)) is not None:
            state.cancelled()
        self._scheduler.cancel(request_id)

    def process(self, events: Iterable[SchedulerEvent]) -> None:
        """Deliver events. An exception in the state of one request ends that request only."""
        for event in events:
            state = self._open.get(event.request_id)
            if state is None:  # the request ended in the middle of this step
                continue
            try:
                if isinstance(event, Generated):  # nearly all events are of this kind
                    ended = state.token(event.token, event.finish_reason, self._clock())
                    self.generated_tokens += 1
                    if ended and event.finish_reason is None:
                        self._scheduler.finish(event.request_id)
                else:
                    ended = self._deliver(event, state)
            except Exception as error:
                own = _typed(f"this output could not be delivered: {error!r}", error)
                self._scheduler.fail(event.request_id)
                self._end_with(state, own)
                ended = True
            if ended:
                self._open.pop(event.request_id, None)

    def fail_rest(self, error: PybatcherError) -> None:
        """End every remaining request with a copy of the error, without calling the scheduler."""
        rest, self._open = self._open, {}
        for state in rest.values():
            self._end_with(state, own_copy(error))

    def _deliver(self, event: SchedulerEvent, state: RequestState) -> bool:
        """Pass an event that is no token to its state. Return True if the request ends with it."""
        match event:
            case Admitted(_, cached_tokens):
                state.admitted(cached_tokens, self._clock())
            case Preempted():
                state.preempted()
            case Resumed(_, recomputed_tokens, after_restart):
                if not after_restart:
                    state.resumed(recomputed_tokens)
            case Answered():
                state.answered(event, self._clock())
                return True
            case Expired():
                state.expire(self._clock())
                self._end_siblings(state)
                return True
            case Failed(_, error):
                self._end_with(state, error)
                return True
        return False

    def _end_with(self, state: RequestState, error: PybatcherError) -> None:
        self._fail(state, error)
        self._end_siblings(state)

    def _fail(self, ends: RequestState | Reply, error: PybatcherError) -> None:
        try:
            ends.fail(error)
        except Exception:  # a reply may be of a caller's own class; other requests are not affected
            _LOGGER.exception("a reply could not take its error: %s", error)

    def _end_siblings(self, state: RequestState) -> None:
        """Drop the other samples of a reply that has failed."""
        if state.reply.failed:
            for request_id in state.siblings:
                if request_id != state.request.request_id:
                    self.cancel(request_id)


def _typed(message: str, cause: Exception) -> EngineError:
    error = EngineError(message)
    error.__cause__ = cause
    return error

"""`OutputProcessor`: passes the scheduler's events to the deliveries of the requests in flight."""

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
from .delivery import Delivery

__all__ = ["OutputProcessor"]

_LOGGER = logging.getLogger("pybatcher")


class OutputProcessor:
    """Holds the `Delivery` of each request that has not ended. For the coordinator's task.

    Ends a request in the scheduler too where its delivery ends it: at a stop text, because a
    token could not be delivered, or because another sample of its reply failed.

    generated_tokens: number of tokens delivered, of all requests so far.
    clock: monotonic, seconds.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._open: dict[int, Delivery] = {}
        self.generated_tokens = 0

    @property
    def n_open(self) -> int:
        """Number of requests that have not ended."""
        return len(self._open)

    def add(self, delivery: Delivery) -> None:
        """Take the delivery of a request that the scheduler has taken: it gets its events."""
        self._open[delivery.request.request_id] = delivery

    def refuse(self, delivery: Delivery, error: Exception) -> None:
        """Fail the reply of a request that was not submitted. Emits no event.

        An exception that is no PybatcherError becomes an EngineError with that cause.
        """
        if not isinstance(error, PybatcherError):
            error = _typed(f"this request could not be taken: {error!r}", error)
        self._fail(delivery.reply, error)
        self._end_siblings(delivery)

    def cancel(self, request_id: int) -> None:
        """Drop a request, so that its reply gets no further results; do nothing if it has ended."""
        if (delivery := self._open.pop(request_id, None)) is not None:
            delivery.cancelled()
        self._scheduler.cancel(request_id)

    def process(self, events: Iterable[SchedulerEvent]) -> None:
        """Deliver events. An exception in the delivery of one request ends that request only."""
        for event in events:
            delivery = self._open.get(event.request_id)
            if delivery is None:  # the request ended in the middle of this step
                continue
            try:
                if isinstance(event, Generated):  # nearly all events
                    ended = delivery.token(event.token, event.finish_reason, self._clock())
                    self.generated_tokens += 1
                    if ended and event.finish_reason is None:
                        self._scheduler.finish(event.request_id)
                else:
                    ended = self._deliver(event, delivery)
            except Exception as error:
                own = _typed(f"this output could not be delivered: {error!r}", error)
                self._scheduler.fail(event.request_id)
                self._end_with(delivery, own)
                ended = True
            if ended:
                self._open.pop(event.request_id, None)

    def fail_rest(self, error: PybatcherError) -> None:
        """End every request that is left, each with a copy of the error, here only.

        The scheduler is not asked.
        """
        rest, self._open = self._open, {}
        for delivery in rest.values():
            self._end_with(delivery, own_copy(error))

    def _deliver(self, event: SchedulerEvent, delivery: Delivery) -> bool:
        """Pass one event, but a token, to its delivery. Return True if the request ends with it."""
        match event:
            case Admitted(_, cached_tokens):
                delivery.admitted(cached_tokens, self._clock())
            case Preempted():
                delivery.preempted()
            case Resumed(_, recomputed_tokens, after_restart):
                if not after_restart:
                    delivery.resumed(recomputed_tokens)
            case Answered():
                delivery.answered(event, self._clock())
                return True
            case Expired():
                delivery.expire(self._clock())
                self._end_siblings(delivery)
                return True
            case Failed(_, error):
                self._end_with(delivery, error)
                return True
        return False

    def _end_with(self, delivery: Delivery, error: PybatcherError) -> None:
        self._fail(delivery, error)
        self._end_siblings(delivery)

    def _fail(self, ends: Delivery | Reply, error: PybatcherError) -> None:
        try:
            ends.fail(error)
        except Exception:  # a reply may be of a caller's own class: others are not affected
            _LOGGER.exception("a reply could not take its error: %s", error)

    def _end_siblings(self, delivery: Delivery) -> None:
        """Drop the other samples of a reply that has failed."""
        if delivery.reply.failed:
            for request_id in delivery.siblings:
                if request_id != delivery.request.request_id:
                    self.cancel(request_id)


def _typed(message: str, cause: Exception) -> EngineError:
    error = EngineError(message)
    error.__cause__ = cause
    return error

"""`OutputProcessor`: whoever waits for a request's outcome, and what the scheduler says to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..calls.stream import Reply
from ..calls.telemetry import Telemetry
from ..errors import EngineError, PybatcherError
from ..scheduling import (
    Admitted,
    Answered,
    Event,
    Expired,
    Failed,
    Generated,
    Preempted,
    Resumed,
    Scheduler,
    own_copy,
)
from ..text import Tokenizer
from .delivery import Delivery
from .inquiry_delivery import InquiryDelivery
from .mailbox import Submit
from .output_text import OutputText

__all__ = ["OutputProcessor"]


class OutputProcessor:
    """One `Delivery` or `InquiryDelivery` for each request that has not ended.

    Tells the scheduler of those that end by what was delivered: at a stop text, or because it
    could not be.

    generated_tokens: those that were delivered, of all requests so far.
    clock: monotonic, seconds.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        clock: Callable[[], float],
        telemetry: Telemetry,
    ) -> None:
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._clock = clock
        self._telemetry = telemetry
        self._open: dict[int, Delivery | InquiryDelivery] = {}
        self.generated_tokens = 0

    @property
    def n_open(self) -> int:
        """Requests without an end."""
        return len(self._open)

    def submit(self, message: Submit) -> None:
        """Have the request scheduled; what comes of it goes to its reply.

        Raises what `Scheduler.submit` raises; then the reply has heard of nothing.
        """
        delivery = self._delivery(message)
        self._scheduler.submit(message.request, self._clock())
        self._open[message.request.request_id] = delivery

    def cancel(self, request_id: int) -> None:
        """Nobody waits for it any more."""
        if (delivery := self._open.pop(request_id, None)) is not None:
            delivery.cancelled()
        self._scheduler.cancel(request_id)

    def deliver(self, events: Iterable[Event]) -> None:
        """Pass events on. Whatever goes wrong with one request ends that one only."""
        for event in events:
            delivery = self._open.get(event.request_id)
            if delivery is None:  # of a step that drew more than was wanted
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
                del self._open[event.request_id]

    def fail_rest(self, error: PybatcherError) -> None:
        """End all that are left, each with an error like this one, whatever the scheduler knows."""
        for delivery in self._open.values():
            delivery.fail(own_copy(error))
        self._open.clear()

    def _delivery(self, message: Submit) -> Delivery | InquiryDelivery:
        request, reply, submitted = message.request, message.reply, message.submitted
        if isinstance(reply, Reply):
            text = message.text or OutputText(request, self._tokenizer)
            return Delivery(request, reply, text, submitted, self._telemetry)
        return InquiryDelivery(request, reply, submitted, self._telemetry)

    def _deliver_one(self, event: Event, delivery: Delivery | InquiryDelivery) -> bool:
        """True if the request has ended with it."""
        match event:
            case Admitted(_, cached_tokens):
                delivery.admitted(cached_tokens, self._clock())
                return False
            case Generated(request_id, token, finish_reason):
                assert isinstance(delivery, Delivery)
                ended = delivery.token(token, finish_reason, self._clock())
                self.generated_tokens += 1
                if ended and finish_reason is None:
                    self._scheduler.finish(request_id)
                return ended
            case Preempted():
                delivery.preempted()
                return False
            case Resumed(_, recomputed_tokens, after_restart):
                if not after_restart:
                    delivery.resumed(recomputed_tokens)
                return False
            case Answered():
                assert isinstance(delivery, InquiryDelivery)
                delivery.answered(event, self._clock())
                return True
            case Expired():
                delivery.expire(self._clock())
                return True
            case Failed(_, error):
                delivery.fail(error)
                return True

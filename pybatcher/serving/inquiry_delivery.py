"""`InquiryDelivery`: from what the engine says of one prompt to the caller that asked."""

from __future__ import annotations

from ..calls.inquiry import Answer, InquiryReply
from ..calls.telemetry import Telemetry
from ..errors import DeadlineExceededError, PybatcherError
from ..scheduling import Answered, Request
from .request_record import RequestRecord

__all__ = ["InquiryDelivery"]


class InquiryDelivery(RequestRecord):
    """As `Delivery`, for a request that draws nothing: it has one answer, or an error."""

    def __init__(
        self, request: Request, reply: InquiryReply, submitted: float, telemetry: Telemetry
    ) -> None:
        super().__init__(request, submitted, telemetry)
        self._reply = reply

    def answered(self, answer: Answered, now: float) -> None:
        """The end."""
        self._reply.finish(Answer(answer.logprobs, answer.vector, self._cached_tokens))
        self._tell("scored" if self._request.targets else "embedded", now)

    def expire(self, now: float) -> None:
        """The deadline has passed."""
        self.fail(
            DeadlineExceededError(
                f"no answer came within {now - self._submitted:.3f} s; raise timeout, or "
                "send less at once"
            )
        )

    def fail(self, error: PybatcherError) -> None:
        """There will be no answer."""
        self._reply.fail(error)
        self._tell(type(error).__name__, self._telemetry.now())

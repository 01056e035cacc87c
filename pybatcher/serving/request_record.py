"""`RequestRecord`: what is told of a request when it is over, gathered on the way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..calls.telemetry import RequestEvent, Telemetry
from ..scheduling import Request

__all__ = ["RequestRecord"]


class RequestRecord:
    """Base of what a coordinator keeps of each request.

    submitted: when the caller asked. All times: seconds of the telemetry's clock.
    """

    def __init__(self, request: Request, submitted: float, telemetry: Telemetry) -> None:
        self._request = request
        self._telemetry = telemetry
        self._submitted = submitted
        self._admitted: float | None = None
        self._cached_tokens = self._preemptions = self._recomputed_tokens = 0
        self._ended = False
        self._token_times: list[float] = []

    def admitted(self, cached_tokens: int, now: float) -> None:
        """The request holds a sequence now."""
        self._admitted = now
        self._cached_tokens = cached_tokens

    def preempted(self) -> None:
        """It lost its KV to others and waits again."""
        self._preemptions += 1

    def resumed(self, recomputed_tokens: int) -> None:
        """It goes on after that; so many of its tokens are computed once more."""
        self._recomputed_tokens += recomputed_tokens

    def cancelled(self) -> None:
        """Nobody waits for the request any more."""
        self._tell("cancelled", self._telemetry.now())

    def _tell(self, finish_reason: str, now: float) -> None:
        """Say once that the request is over, if anybody listens."""
        first, self._ended = not self._ended, True
        if not (first and self._telemetry.has_handlers):
            return
        times: Sequence[float] = self._token_times
        self._telemetry.emit(
            RequestEvent(
                when=now,
                request_id=self._request.request_id,
                namespace=self._request.namespace,
                priority=self._request.priority,
                finish_reason=finish_reason,
                prompt_tokens=len(self._request.prompt),
                cached_tokens=self._cached_tokens,
                generated_tokens=len(times),
                queued=(now if self._admitted is None else self._admitted) - self._submitted,
                ttft=times[0] - self._submitted if times else None,
                itl=tuple(later - sooner for sooner, later in pairwise(times)),
                total=now - self._submitted,
                preemptions=self._preemptions,
                recomputed_tokens=self._recomputed_tokens,
            )
        )

"""`WaitingQueue`: requests that hold no sequence yet, first come first served."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque

from ..errors import QueueFullError
from .request import Request

__all__ = ["WaitingQueue"]

_PACE_SAMPLES = 32
_DEFAULT_PACE = 1.0
_MIN_RETRY, _MAX_RETRY = 0.05, 60.0


class WaitingQueue:
    """Bounded by requests and by prompt tokens. No operation looks at all who wait.

    It also measures its pace, the seconds between admissions, which is what
    `QueueFullError.retry_after` is estimated from.
    """

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._requests: OrderedDict[int, tuple[Request, float]] = OrderedDict()
        self._deadlines: list[tuple[float, int]] = []  # a heap; may name some who left
        self._admitted_at: deque[float] = deque(maxlen=_PACE_SAMPLES)
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._requests

    @property
    def tokens(self) -> int:
        """Prompt tokens that wait."""
        return self._tokens

    @property
    def requests(self) -> list[Request]:
        """All who wait, in their order."""
        return [request for request, _ in self._requests.values()]

    @property
    def head(self) -> Request | None:
        """Who is next."""
        return next((request for request, _ in self._requests.values()), None)

    @property
    def waiting_since(self) -> float | None:
        """When the one who is next was submitted."""
        return next((submitted for _, submitted in self._requests.values()), None)

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of all who wait."""
        while self._deadlines and self._deadlines[0][1] not in self._requests:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def append(self, request: Request, now: float) -> None:
        """Queue up. QueueFullError past a limit, but somebody may always wait."""
        n_requests = len(self._requests) + 1
        n_tokens = self._tokens + len(request.prompt)
        if n_requests > self._max_requests:
            raise self._full("max_queue_requests", self._max_requests, n_requests)
        if n_requests > 1 and n_tokens > self._max_tokens:
            raise self._full("max_queue_tokens", self._max_tokens, n_tokens)
        self._requests[request.request_id] = (request, now)
        self._tokens = n_tokens
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.request_id))

    def remove(self, request_id: int) -> Request:
        """Leave the queue, from wherever in it."""
        request, _ = self._requests.pop(request_id)
        self._tokens -= len(request.prompt)
        return request

    def admit_head(self, now: float) -> Request:
        """Take out the one who is next, to be served."""
        self._admitted_at.append(now)
        return self.remove(next(iter(self._requests)))

    def expired(self, now: float) -> list[int]:
        """Those whose deadline has passed."""
        late = []
        while (deadline := self.next_deadline) is not None and deadline <= now:
            late.append(heapq.heappop(self._deadlines)[1])
        return late

    def _full(self, field: str, limit: int, wanted: int) -> QueueFullError:
        retry_after = self._retry_after()
        return QueueFullError(
            f"{field} is {limit} and this request would make it {wanted}; "
            f"try again in about {retry_after:.2f} s, or raise {field}",
            retry_after,
        )

    def _retry_after(self) -> float:
        """Seconds until half of the queue should be gone, at the pace seen so far.

        Half, not one place: all who are refused now come back at that time.
        """
        times = self._admitted_at
        pace = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else _DEFAULT_PACE
        return min(max(pace * (len(self._requests) + 1) / 2, _MIN_RETRY), _MAX_RETRY)

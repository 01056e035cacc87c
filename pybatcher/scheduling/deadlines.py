"""`Deadlines`: finds the requests that are past their deadline."""

from __future__ import annotations

import heapq
import math

from ..errors import InvalidRequestError
from .request import LiveRequest

__all__ = ["Deadlines"]

_SLACK = 64


class Deadlines:
    """A heap of deadlines, the earliest first.

    Entries of ended requests are removed when they reach the top, or when they are half of all.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LiveRequest]] = []
        self._bound = _SLACK

    def add(self, live: LiveRequest) -> None:
        """Watch a request, if it has a deadline. Raises if the deadline is not a number."""
        if live.request.deadline is None:
            return
        deadline = float(
            live.request.deadline
        )  # a wrong type raises here, not in a later comparison
        if math.isnan(deadline):
            raise InvalidRequestError(
                "deadline is nan; it must be a time in seconds, or None", field="deadline"
            )
        if len(self._heap) >= self._bound:
            self._heap = [entry for entry in self._heap if not entry[2].ended]
            heapq.heapify(self._heap)
            self._bound = 2 * len(self._heap) + _SLACK
        heapq.heappush(self._heap, (deadline, live.number, live))

    @property
    def next(self) -> float | None:
        """The earliest deadline of a request that has not ended."""
        while self._heap and self._heap[0][2].ended:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_passed(self, now: float) -> LiveRequest | None:
        """Remove and return a request whose deadline has passed; None if there is none."""
        deadline = self.next
        if deadline is None or deadline > now:
            return None
        return heapq.heappop(self._heap)[2]

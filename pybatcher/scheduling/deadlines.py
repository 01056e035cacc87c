"""`Deadlines`: whose time is up."""

from __future__ import annotations

import heapq

from .request import LiveRequest

__all__ = ["Deadlines"]

_SLACK = 64


class Deadlines:
    """The earliest first. Who has ended is forgotten when it comes up, or is half of all."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LiveRequest]] = []
        self._bound = _SLACK

    def add(self, live: LiveRequest) -> None:
        """Watch a request, if it has a deadline."""
        deadline = live.request.deadline
        if deadline is None:
            return
        if len(self._heap) >= self._bound:
            self._heap = [entry for entry in self._heap if not entry[2].ended]
            heapq.heapify(self._heap)
            self._bound = 2 * len(self._heap) + _SLACK
        heapq.heappush(self._heap, (deadline, live.number, live))

    @property
    def next(self) -> float | None:
        """The earliest deadline of who has not ended."""
        while self._heap and self._heap[0][2].ended:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def passed(self, now: float) -> list[LiveRequest]:
        """Those whose deadline has come; they are watched no more."""
        late = []
        while (deadline := self.next) is not None and deadline <= now:
            late.append(heapq.heappop(self._heap)[2])
        return late

"""`RollingWindow`: totals and latencies of the steps and requests of the last minute."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from .telemetry import RequestEvent, StepEvent, TelemetryEvent

__all__ = ["RollingWindow", "Second", "percentile"]

SPAN = 60  # seconds
MOST_REQUESTS = 1000  # events kept
MOST_GAPS = 5000  # gaps between tokens returned by `itl`; sorting them takes a millisecond


@dataclass(slots=True)
class Second:
    """Totals of the steps that ended within one second of the clock."""

    number: int
    steps: int = 0
    decode_rows: int = 0
    prefill_rows: int = 0
    draft_rows: int = 0
    seconds: float = 0.0
    engine_seconds: float = 0.0
    most_queued: int = 0

    def add(self, event: StepEvent) -> None:
        """Add a step to the totals."""
        self.steps += 1
        self.decode_rows += event.decode_rows
        self.prefill_rows += event.prefill_rows
        self.draft_rows += event.draft_rows
        self.seconds += event.seconds
        self.engine_seconds += event.engine_seconds
        self.most_queued = max(self.most_queued, event.queued)


class RollingWindow:
    """A handler of telemetry events that keeps the last minute, in bounded memory.

    All times, `now` too, are seconds of the batcher's clock.
    """

    def __init__(self) -> None:
        self._seconds: deque[Second] = deque(maxlen=SPAN)  # seconds that had steps, oldest first
        self._requests: deque[RequestEvent] = deque(maxlen=MOST_REQUESTS)

    def __call__(self, event: TelemetryEvent) -> None:
        """Record an event."""
        if isinstance(event, RequestEvent):
            self._requests.append(event)
            return
        number = int(event.when)
        if not self._seconds or self._seconds[-1].number != number:
            self._seconds.append(Second(number))
        self._seconds[-1].add(event)

    def seconds(self, now: float, count: int = SPAN) -> list[Second]:
        """Return the totals of the last `count` seconds, the current one last."""
        last = int(now)
        seen = {second.number: second for second in self._seconds}
        return [seen.get(n) or Second(n) for n in range(last - count + 1, last + 1)]

    def recent(self, count: int) -> list[RequestEvent]:
        """Return the `count` requests that ended last, at any time, the latest first."""
        return list(islice(reversed(self._requests), count))

    def ttft(self, now: float) -> list[float]:
        """Return the times to first token, in seconds, of ended requests."""
        return [event.ttft for event in self._ended(now) if event.ttft is not None]

    def itl(self, now: float) -> list[float]:
        """Return the latest gaps between tokens, in seconds, of ended requests."""
        return list(islice((gap for event in self._ended(now) for gap in event.itl), MOST_GAPS))

    def queued(self, now: float) -> list[float]:
        """Return the seconds from submit to admission of ended requests."""
        return [event.queued for event in self._ended(now)]

    def total(self, now: float) -> list[float]:
        """Return the seconds from submit to the end of ended requests."""
        return [event.total for event in self._ended(now)]

    def _ended(self, now: float) -> Iterator[RequestEvent]:
        """Yield the requests that ended within the last minute, the latest first."""
        for event in reversed(self._requests):
            if event.when < now - SPAN:
                return
            yield event


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the least value that `percent` % of the values do not exceed; 0.0 for none."""
    if not values:
        return 0.0
    return sorted(values)[max(math.ceil(len(values) * percent / 100) - 1, 0)]

"""`RollingWindow`: what the steps and the requests of the last minute come to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ..calls.telemetry import RequestEvent, StepEvent, TelemetryEvent

__all__ = ["RollingWindow", "Second"]

SPAN = 60  # seconds
MOST_REQUESTS = 1000  # kept of them
MOST_GAPS = 5000  # between tokens that are looked at; sorting them takes a millisecond


@dataclass(slots=True)
class Second:
    """The steps that ended within one second of the clock."""

    number: int
    steps: int = 0
    decode_rows: int = 0
    prefill_rows: int = 0
    draft_rows: int = 0
    seconds: float = 0.0
    engine_seconds: float = 0.0
    most_queued: int = 0

    def add(self, event: StepEvent) -> None:
        """One more step."""
        self.steps += 1
        self.decode_rows += event.decode_rows
        self.prefill_rows += event.prefill_rows
        self.draft_rows += event.draft_rows
        self.seconds += event.seconds
        self.engine_seconds += event.engine_seconds
        self.most_queued = max(self.most_queued, event.queued)


class RollingWindow:
    """A handler of events. What it keeps is bounded, however much there is of them.

    All times are of the batcher's clock, `now` too.
    """

    def __init__(self) -> None:
        self._seconds: deque[Second] = deque(maxlen=SPAN)  # those with steps, oldest first
        self._requests: deque[RequestEvent] = deque(maxlen=MOST_REQUESTS)

    def __call__(self, event: TelemetryEvent) -> None:
        """Take an event in."""
        if isinstance(event, RequestEvent):
            self._requests.append(event)
            return
        number = int(event.when)
        if not self._seconds or self._seconds[-1].number != number:
            self._seconds.append(Second(number))
        self._seconds[-1].add(event)

    def seconds(self, now: float, count: int = SPAN) -> list[Second]:
        """The last `count` seconds, the one that runs last; those without steps are empty."""
        last = int(now)
        seen = {second.number: second for second in self._seconds}
        return [seen.get(n) or Second(n) for n in range(last - count + 1, last + 1)]

    def recent(self, count: int) -> list[RequestEvent]:
        """The requests that ended last, whenever that was; the latest first."""
        return list(islice(reversed(self._requests), count))

    def ttft(self, now: float) -> list[float]:
        """Times to first token, in seconds, of requests that have ended."""
        return [event.ttft for event in self._ended(now) if event.ttft is not None]

    def itl(self, now: float) -> list[float]:
        """Gaps between tokens, in seconds, of requests that have ended: the latest ones."""
        return list(islice((gap for event in self._ended(now) for gap in event.itl), MOST_GAPS))

    def queued(self, now: float) -> list[float]:
        """Seconds until admission, of requests that have ended."""
        return [event.queued for event in self._ended(now)]

    def total(self, now: float) -> list[float]:
        """Seconds from submit to the end."""
        return [event.total for event in self._ended(now)]

    def _ended(self, now: float) -> Iterator[RequestEvent]:
        """Within the span, the latest first."""
        for event in reversed(self._requests):
            if event.when < now - SPAN:
                return
            yield event

"""`SchedulerCounters`: counts since the start, and the events that nobody has taken yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import PybatcherError
from .events import Expired, Failed, SchedulerEvent
from .statistics import SchedulerStatistics

__all__ = ["SchedulerCounters"]


@dataclass
class SchedulerCounters:
    """The monotonic counts of `SchedulerStatistics`, under its names, and the events."""

    submitted: int = 0
    completed: int = 0
    cancelled: int = 0
    expired: int = 0
    failed: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: int = 0
    computed_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    replayed_tokens: int = 0

    def __post_init__(self) -> None:
        self.events: list[SchedulerEvent] = []

    def take_events(self) -> list[SchedulerEvent]:
        """Return the events since the last call, in order, and forget them."""
        events, self.events = self.events, []
        return events

    def note_expired(self, request_id: int) -> None:
        """Count one expired request and queue `Expired(request_id)`."""
        self.expired += 1
        self.events.append(Expired(request_id))

    def note_failed(self, request_id: int, error: PybatcherError) -> None:
        """Count one failed request and queue `Failed(request_id, error)`."""
        self.failed += 1
        self.events.append(Failed(request_id, error))

    def statistics(self, now: Mapping[str, int]) -> SchedulerStatistics:
        """Return the counts together with `now`, the fields that are not monotonic."""
        counts = {name: getattr(self, name) for name in SchedulerCounters.__dataclass_fields__}
        return SchedulerStatistics(**counts, **now)

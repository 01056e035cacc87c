"""`SchedulerCounters`: what has happened, as events not yet taken and as counts since the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import PybatcherError
from .events import Event, Expired, Failed
from .statistics import SchedulerStatistics

__all__ = ["SchedulerCounters"]


@dataclass
class SchedulerCounters:
    """Counts of `SchedulerStatistics`, by its names, and the events that go with them."""

    submitted: int = 0
    completed: int = 0
    cancelled: int = 0
    expired: int = 0
    failed: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    replayed_tokens: int = 0

    def __post_init__(self) -> None:
        self.events: list[Event] = []

    def take_events(self) -> list[Event]:
        """Everything that happened since events were last taken."""
        events, self.events = self.events, []
        return events

    def note_expired(self, request_id: int) -> None:
        """A deadline passed."""
        self.expired += 1
        self.events.append(Expired(request_id))

    def note_failed(self, request_id: int, error: PybatcherError) -> None:
        """A request cannot go on."""
        self.failed += 1
        self.events.append(Failed(request_id, error))

    def statistics(self, now: Mapping[str, int]) -> SchedulerStatistics:
        """The counts, and those of `now`: how many there are of what."""
        counts = {name: getattr(self, name) for name in SchedulerCounters.__dataclass_fields__}
        return SchedulerStatistics(**counts, **now)

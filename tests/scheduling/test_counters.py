"""`SchedulerCounters`: each ending is counted once, and its event is taken once."""

from __future__ import annotations

from pybatcher.errors import EngineError
from pybatcher.scheduling import Expired, Failed
from pybatcher.scheduling.counters import SchedulerCounters


def test_endings_are_counted_and_told_once() -> None:
    counters, error = SchedulerCounters(), EngineError("broken")
    counters.note_expired(1)
    counters.note_failed(2, error)
    assert counters.take_events() == [Expired(1), Failed(2, error)]
    assert counters.take_events() == []
    assert (counters.expired, counters.failed) == (1, 1)

"""`SidecarStatistics`: counts of a sidecar since its start, across restarts of its workers."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ...calls.statistics import BatcherStatistics

__all__ = ["SidecarStatistics", "add_counts", "at_least", "no_counts", "without_gauges"]

_GAUGES = frozenset(
    {
        "queued",
        "queued_tokens",
        "running",
        "max_running",
        "max_rows",
        "kv_total_blocks",
        "kv_free_blocks",
        "kv_cached_blocks",
    }
)
"""The gauges, which have the current state and end with the worker; other fields are counters."""

_FIELDS = tuple(field.name for field in fields(BatcherStatistics))
"""The fields that are summed; statistics of a subclass have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarStatistics(BatcherStatistics):
    """The batcher's counts, summed over all workers since the sidecar's start, and the front's.

    Counters never fall and count nothing twice. The counts of a worker that died are those of its
    last heartbeat.

    worker_restarts: workers that ended and were followed by another.
    replayed_requests: calls that were sent to a worker again, with the tokens they had
        (`replayed_tokens` were computed again for them).
    connections: clients that are connected now.
    in_flight: their calls without a response.
    worker_pids: process ids of the running workers: one, or two while one is drained after a
        reload.
    """

    worker_restarts: int
    replayed_requests: int
    connections: int
    in_flight: int
    worker_pids: tuple[int, ...]


def no_counts() -> BatcherStatistics:
    """Return counts that are all 0."""
    return BatcherStatistics(**dict.fromkeys(_FIELDS, 0))


def without_gauges(counts: BatcherStatistics) -> BatcherStatistics:
    """Return the counters of a worker that has ended, with all gauges 0.

    Its unfinished requests are not in `submitted`, since they are submitted to another worker.
    """
    lost = counts.queued + counts.running
    ended = replace(counts, submitted=counts.submitted - lost)
    return replace(ended, **dict.fromkeys(_GAUGES, 0))


def add_counts(some: BatcherStatistics, more: BatcherStatistics) -> BatcherStatistics:
    """Return the sums, field by field."""
    return BatcherStatistics(**{n: getattr(some, n) + getattr(more, n) for n in _FIELDS})


def at_least(counts: BatcherStatistics, floor: BatcherStatistics) -> BatcherStatistics:
    """Return `counts`, each counter raised to that of `floor` if it is lower."""
    raised = {n: max(getattr(counts, n), getattr(floor, n)) for n in _FIELDS if n not in _GAUGES}
    return BatcherStatistics(**raised, **{n: getattr(counts, n) for n in _GAUGES})

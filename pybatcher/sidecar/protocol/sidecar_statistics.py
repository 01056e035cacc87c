"""`SidecarStatistics`: counts of a sidecar since its start, whatever became of its workers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace

from ...calls.statistics import BatcherStatistics

__all__ = ["SidecarStatistics", "add_counts", "no_counts", "without_gauges"]

_GAUGES = (
    "queued",
    "queued_tokens",
    "running",
    "kv_total_blocks",
    "kv_free_blocks",
    "kv_cached_blocks",
)
"""What is so right now, and ends with the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarStatistics(BatcherStatistics):
    """The batcher's counts, summed over all workers, and those of the front.

    What a worker that died had counted since its last heartbeat is missing in the former.
    `worker_restarts` workers died and were followed by another; `replayed_requests` were sent
    to it, with what they had (`replayed_tokens` were computed again for them). Now there are
    `connections` with `in_flight` requests, and
    workers with `worker_pids`: one, or two while one is drained after a reload.
    """

    worker_restarts: int
    replayed_requests: int
    connections: int
    in_flight: int
    worker_pids: tuple[int, ...]


def no_counts() -> BatcherStatistics:
    """All zero."""
    return BatcherStatistics(**{field.name: 0 for field in fields(BatcherStatistics)})


def without_gauges(counts: BatcherStatistics) -> BatcherStatistics:
    """What remains of the counts of a worker that is gone: its requests are somebody else's now."""
    lost = counts.queued + counts.running
    ended = replace(counts, submitted=counts.submitted - lost)
    return replace(ended, **dict.fromkeys(_GAUGES, 0))


def add_counts(some: BatcherStatistics, more: BatcherStatistics) -> BatcherStatistics:
    """The sums."""
    mine, others = asdict(some), asdict(more)
    return BatcherStatistics(**{name: mine[name] + others[name] for name in mine})

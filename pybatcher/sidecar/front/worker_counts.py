"""`WorkerCounts`: the counts of workers that follow one another, as one sum. Pure.

Counters never fall and count nothing twice, whenever they are read: a worker's report replaces
its earlier one, and only the end of a worker adds its last report to those of the workers before.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...calls.statistics import BatcherStatistics
from ..protocol.sidecar_statistics import add_counts, at_least, no_counts, without_gauges

__all__ = ["Totals", "WorkerCounts"]


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts of one supervisor, or of several. All three were read at one moment.

    counts: counts of all its workers; gauges are those of the running worker.
    worker_restarts: workers that ended and were followed by another.
    replayed_requests: calls that were sent to a worker again.
    """

    counts: BatcherStatistics
    worker_restarts: int = 0
    replayed_requests: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            add_counts(self.counts, other.counts),
            self.worker_restarts + other.worker_restarts,
            self.replayed_requests + other.replayed_requests,
        )


class WorkerCounts:
    """The counts of the workers of one supervisor.

    A worker may end with requests that it had counted as submitted, and that the next worker
    counts again. Until it has done so, `total` returns the same counts as before.
    """

    def __init__(self) -> None:
        self._ended = no_counts()  # counts of workers that are gone
        self._latest = no_counts()  # last report of the running worker
        self._shown = no_counts()

    def report(self, counts: BatcherStatistics) -> None:
        """Process the counts of the running worker. Reports may come in another order than sent."""
        self._latest = at_least(counts, self._latest)

    def worker_ended(self) -> None:
        """Keep the counters of the worker that ran, and drop its gauges. The next begins at 0."""
        self._ended = add_counts(self._ended, without_gauges(self._latest))
        self._latest = no_counts()

    @property
    def is_idle(self) -> bool:
        """True if the worker that runs had no request left when it last reported."""
        return not self._latest.queued + self._latest.running

    def total(self) -> BatcherStatistics:
        """Return the counts of all workers; no counter is lower than in any total before."""
        self._shown = at_least(add_counts(self._ended, self._latest), self._shown)
        return self._shown

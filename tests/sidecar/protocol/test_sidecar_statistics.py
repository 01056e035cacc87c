"""Counts of several workers, and of those that are gone."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

from pybatcher.calls.statistics import BatcherStatistics
from pybatcher.sidecar.protocol.sidecar_statistics import add_counts, no_counts, without_gauges

ONE = BatcherStatistics(**{field.name: i for i, field in enumerate(fields(BatcherStatistics), 1)})


def test_counts_are_added() -> None:
    assert add_counts(no_counts(), ONE) == ONE
    assert asdict(add_counts(ONE, ONE)) == {name: 2 * n for name, n in asdict(ONE).items()}


def test_of_a_worker_that_is_gone_nothing_runs_and_what_ran_is_somebody_elses() -> None:
    counts = replace(ONE, submitted=10, completed=4, queued=3, running=2, cancelled=1)
    gone = without_gauges(counts)
    assert (gone.submitted, gone.completed, gone.queued, gone.running) == (5, 4, 0, 0)
    assert (gone.queued_tokens, gone.kv_total_blocks, gone.kv_free_blocks) == (0, 0, 0)
    assert gone.generated_tokens == counts.generated_tokens
    ended = gone.completed + gone.cancelled
    assert gone.submitted == ended  # as of one that never lost anybody

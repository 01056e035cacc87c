"""Counters of workers that follow one another: whenever they are read, they are right."""

from __future__ import annotations

from dataclasses import asdict, replace

from hypothesis import given
from hypothesis import strategies as st

from pybatcher.calls.statistics import BatcherStatistics
from pybatcher.sidecar.front.worker_counts import Totals, WorkerCounts
from pybatcher.sidecar.protocol.sidecar_statistics import no_counts

GAUGES = (
    "queued",
    "queued_tokens",
    "running",
    "max_running",
    "max_rows",
    "kv_total_blocks",
    "kv_free_blocks",
    "kv_cached_blocks",
)


def counters(counts: BatcherStatistics) -> dict[str, int]:
    return {name: value for name, value in asdict(counts).items() if name not in GAUGES}


def counted(submitted: int, completed: int, tokens: int = 0) -> BatcherStatistics:
    """Of a worker in which whatever has not ended runs."""
    return replace(
        no_counts(),
        submitted=submitted,
        completed=completed,
        running=submitted - completed,
        generated_tokens=tokens,
        kv_total_blocks=64,
    )


def test_a_report_replaces_the_one_before_and_the_next_worker_adds_to_it() -> None:
    counts = WorkerCounts()
    counts.report(counted(3, 2, 20))
    counts.report(counted(4, 4, 40))
    assert counts.total() == counted(4, 4, 40)
    counts.worker_ended()
    assert counts.total() == replace(counted(4, 4, 40), kv_total_blocks=0)
    counts.report(counted(2, 1, 7))
    assert counts.total() == counted(6, 5, 47)
    counts.worker_ended()
    counts.worker_ended()
    assert counts.total().generated_tokens == 47


def test_requests_that_the_next_worker_counts_again_are_counted_once() -> None:
    counts = WorkerCounts()
    counts.report(counted(10, 5))
    assert counts.total().submitted == 10
    counts.worker_ended()
    assert counts.total().submitted == 10, "five of them are on their way to the next worker"
    for n_again in range(6):
        counts.report(counted(n_again, 0))
        assert counts.total().submitted == 10
    counts.report(counted(7, 3))
    assert (counts.total().submitted, counts.total().completed) == (12, 8)


def test_an_older_report_that_comes_late_takes_nothing_away() -> None:
    counts = WorkerCounts()
    counts.report(counted(4, 4, 40))
    counts.report(counted(3, 2, 20))
    assert counters(counts.total()) == counters(counted(4, 4, 40))


def test_totals_are_added() -> None:
    one, other = Totals(counted(1, 1, 5), 2, 3), Totals(counted(2, 1, 6), 4, 5)
    both = one + other
    assert (both.counts.generated_tokens, both.worker_restarts, both.replayed_requests) == (
        11,
        6,
        8,
    )


STEPS = st.lists(
    st.sampled_from(("submit", "token", "complete", "beat", "read", "end")), max_size=80
)


@given(STEPS)
def test_whatever_happens_counters_never_fall_and_never_exceed_the_truth(steps: list[str]) -> None:
    """The truth: requests and tokens of a model that knows every worker's counts at every moment.

    A worker that ends is followed by one to which all that had not ended is submitted.
    """
    counts = WorkerCounts()
    asked = done = all_tokens = 0  # in truth
    of_worker = [0, 0, 0]  # submitted, completed, tokens of the worker that runs
    shown = counters(counts.total())
    for step in steps:
        if step == "submit":
            asked += 1
            of_worker[0] += 1
        elif step == "token":
            of_worker[2] += 1
            all_tokens += 1
        elif step == "complete" and of_worker[0] > of_worker[1]:
            done += 1
            of_worker[1] += 1
        elif step == "beat":
            counts.report(counted(*of_worker))
        elif step == "end":
            left = of_worker[0] - of_worker[1]
            counts.worker_ended()
            of_worker = [left, 0, 0]
        now = counters(counts.total())
        assert all(now[name] >= shown[name] for name in now)
        assert now["submitted"] <= asked
        assert now["completed"] <= done
        assert now["generated_tokens"] <= all_tokens
        shown = now


@given(STEPS)
def test_if_every_worker_reports_before_it_ends_nothing_is_missing(steps: list[str]) -> None:
    counts = WorkerCounts()
    asked = done = 0
    of_worker = [0, 0]
    for step in steps:
        if step == "submit":
            asked += 1
            of_worker[0] += 1
        elif step == "complete" and of_worker[0] > of_worker[1]:
            done += 1
            of_worker[1] += 1
        elif step == "read":
            counts.total()
        elif step == "end":
            counts.report(counted(*of_worker))
            counts.worker_ended()
            of_worker = [of_worker[0] - of_worker[1], 0]
    counts.report(counted(*of_worker))
    total = counts.total()
    assert (total.submitted, total.completed) == (asked, done)
    assert total.running == asked - done

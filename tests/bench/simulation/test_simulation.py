from __future__ import annotations

import itertools
import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from bench.common.histogram import TimeHistogram
from bench.common.results import RESULTS
from bench.common.slo import Slo
from bench.report import draw as pictures
from bench.serving.loads import LOADS
from bench.serving.traces import TraceRequest, draw
from bench.simulation.costs import StepCosts, Work, capacity, errors, fit, read_costs
from bench.simulation.engine import END_TOKEN, KvBookkeeping, SimulatedEngine
from bench.simulation.fitting import SEQUENCES, measure_steps, positions_needed
from bench.simulation.run import SchedulerTimes, Simulation
from bench.simulation.scheduler_cost import scheduler_cost
from pybatcher.scheduling import Request, StepEntry, StepPlan
from pybatcher.testing import FakeEngine

COSTS = StepCosts(0.005, 4e-4, 3e-4, 2e-8, 1e-8)
REQUEST = TraceRequest(at=0.0, prompt_tokens=40, new_tokens=5, max_tokens=9)


@pytest.fixture
def book() -> KvBookkeeping:
    return KvBookkeeping(n_ctx=256, n_parallel=4, block_size=32)


def step(
    engine: SimulatedEngine, *entries: StepEntry, decode_rows: int = 0
) -> tuple[list[int], Work]:
    rows = sum(len(entry.tokens) for entry in entries)
    result, work = engine.step(StepPlan(entries, decode_rows, rows - decode_rows))
    return [t.token_id for drawn in result.sampled.values() for t in drawn], work


def test_a_request_ends_where_its_trace_says(book: KvBookkeeping) -> None:
    engine = SimulatedEngine(book, [REQUEST])
    output = [engine.token(0, position) for position in range(40, 46)]
    assert END_TOKEN not in output[:4]
    assert output[4:] == [END_TOKEN, END_TOKEN]
    just_so = SimulatedEngine(book, [TraceRequest(at=0.0, prompt_tokens=40, new_tokens=5)])
    assert [just_so.token(0, p) for p in range(40, 44)] == output[:4]
    assert just_so.token(0, 44) != END_TOKEN


def test_work_counts_rows_and_what_they_attend_to(book: KvBookkeeping) -> None:
    engine = SimulatedEngine(book, [REQUEST])
    seq_id = book.seq_new()
    book.seq_sampling(seq_id, None, seed=0, n_prompt=40)
    drawn, work = step(engine, StepEntry(seq_id, tuple(range(30)), False))
    assert (drawn, work) == ([], Work(0, 30, 0, 30 * 31 // 2))
    drawn, work = step(engine, StepEntry(seq_id, tuple(range(30, 40)), True))
    assert (drawn, work) == ([engine.token(0, 40)], Work(0, 10, 0, 10 * 30 + 55))
    drawn, work = step(engine, StepEntry(seq_id, tuple(drawn), True), decode_rows=1)
    assert (drawn, work) == ([engine.token(0, 41)], Work(1, 0, 41, 0))


def test_drafts_stay_up_to_the_first_rejected_one(book: KvBookkeeping) -> None:
    engine = SimulatedEngine(book, [REQUEST])
    seq_id = book.seq_new()
    book.seq_sampling(seq_id, None, seed=0, n_prompt=40)
    step(engine, StepEntry(seq_id, tuple(range(40)), True))
    a, b, c = (engine.token(0, position) for position in (40, 41, 42))
    drawn, _ = step(engine, StepEntry(seq_id, (a, b, 999), True, n_draft=2))
    assert drawn == [b, c]
    assert book.seq_length(seq_id) == 42
    book.check_integrity()


def test_recomputed_tokens_are_counted(book: KvBookkeeping) -> None:
    engine = SimulatedEngine(book, [REQUEST, REQUEST])
    for index in (0, 1):
        seq_id = book.seq_new()
        book.seq_sampling(seq_id, None, seed=index, n_prompt=40)
        step(engine, StepEntry(seq_id, tuple(range(index, 40 + index)), True))
    book.seq_remove(0)
    seq_id = book.seq_new("elsewhere")  # where nothing is cached
    book.seq_sampling(seq_id, None, seed=0, n_prompt=40)
    step(engine, StepEntry(seq_id, tuple(range(30)), False))
    step(engine, StepEntry(seq_id, tuple(range(30, 43)), True))
    assert engine.preemptions == 1
    assert engine.recomputed_tokens == 40
    step(engine, StepEntry(1, (1,), True), decode_rows=1)
    assert engine.recomputed_tokens == 40


def loads_that_can_be_asked_for() -> list[str]:
    """All, where requests have priorities."""
    has_priority = any(field.name == "priority" for field in fields(Request))
    return [name for name in LOADS if has_priority or LOADS[name].load.priorities == 1]


@pytest.mark.parametrize("load", loads_that_can_be_asked_for())
def test_every_request_of_a_load_is_finished(load: str) -> None:
    trace = draw(LOADS[load].load, 150, rate=8.0, seed=3)
    ended: list[int] = []
    runs = []
    for _ in range(2):
        simulation = Simulation(trace, LOADS[load].options, COSTS, on_end=lambda: ended.append(1))
        simulation.run()
        simulation.book.check_integrity()
        assert simulation.book.used_sequences == 0
        runs.append(simulation.figures(Slo(ttft=1.0)))
    assert len(ended) == 300
    assert runs[0]["finished"] == 150
    assert runs[0]["tokens_per_s"] == pytest.approx(
        sum(r.new_tokens for r in trace) / runs[0]["seconds"]
    )
    for run in runs:
        assert run.pop("scheduler")["all"]["steps"] == run["steps"]
    assert repr(runs[0]) == repr(runs[1])


def test_times_are_those_of_the_costs() -> None:
    trace = [TraceRequest(at=2.0, prompt_tokens=10, new_tokens=3)]
    simulation = Simulation(trace, {"n_ctx": 256}, StepCosts(1.0, 0.1, 0.01, 0.0, 0.0))
    simulation.run()
    found = simulation.figures(Slo(ttft=1.0, itl=2.0))
    assert found["ttft_s"]["p50"] == pytest.approx(1.1)
    assert found["itl_s"]["max"] == pytest.approx(1.1)
    assert found["e2e_s"]["p50"] == pytest.approx(3.3)
    assert found["seconds"] == pytest.approx(5.3)
    assert found["met"] == 0.0
    assert simulation.figures(Slo(ttft=1.2))["met"] == 1.0


def test_a_request_that_can_never_fit_is_refused() -> None:
    trace = [TraceRequest(at=0.0, prompt_tokens=n, new_tokens=3) for n in (1000, 10)]
    simulation = Simulation(trace, {"n_ctx": 256}, COSTS)
    simulation.run()
    found = simulation.figures(Slo())
    assert (found["refused"], found["finished"], found["met"]) == (1, 1, 0.5)


def test_gaps_are_counted_to_one_in_a_hundred() -> None:
    values = np.random.default_rng(0).lognormal(-4, 1.5, 20_000)
    histogram = TimeHistogram()
    for value in values.tolist():
        histogram.add(value)
    for name, value in histogram.percentiles().items():
        exact = values.max() if name == "max" else np.percentile(values, int(name[1:]))
        assert value == pytest.approx(exact, rel=0.011)
    assert math.isnan(TimeHistogram().percentiles()["p50"])


def test_the_schedulers_time_by_sequences_and_by_queue() -> None:
    times = SchedulerTimes()
    for seconds, n_sequences, n_queued in ((1e-5, 4, 0), (3e-5, 200, 0), (5e-5, 200, 50_000)):
        times.add(seconds, n_sequences, n_queued)
    found = times.figures()
    assert found["all"]["p50_us"] == pytest.approx(30)
    assert found["sequences"]["1-16"]["steps"] == 1
    assert found["sequences"]["65-256"]["p50_us"] == pytest.approx(40)
    assert found["queued"]["0"]["p50_us"] == pytest.approx(20)
    assert found["queued"]["10000-"]["max_us"] == pytest.approx(50)


def test_a_fit_finds_the_costs_and_none_below_zero() -> None:
    works = [
        Work(d, p, d * c, p * c)
        for d, p, c in itertools.product((0, 1, 8, 16), (0, 16, 256), (64, 1024))
    ]
    found = fit([(work, COSTS.seconds(work)) for work in works])
    assert found.decode_row == pytest.approx(COSTS.decode_row)
    assert found.prefill_context == pytest.approx(COSTS.prefill_context)
    falling = StepCosts(0.1, 1e-3, 1e-3, 0.0, -1e-8)
    measured = [(work, falling.seconds(work)) for work in works]
    found = fit(measured)
    assert found.prefill_context == 0.0
    assert min(found.step, found.decode_row, found.prefill_row) > 0.0
    assert 0.0 < errors(found, measured)["median"] < 0.1


def test_capacity_falls_with_less_memory_and_less_sharing() -> None:
    trace = draw(LOADS["agents"].load, 200, 1.0, 0)
    most = capacity(COSTS, trace, n_parallel=32, n_ctx=65_536)
    assert capacity(COSTS, trace, n_parallel=32, n_ctx=1024) < most
    unshared = [TraceRequest(r.at, r.prompt_tokens, r.new_tokens) for r in trace]
    assert capacity(COSTS, unshared, n_parallel=32, n_ctx=65_536) < most / 2


def test_steps_of_all_kinds_are_measured_and_nothing_is_left() -> None:
    engine = FakeEngine(n_ctx=positions_needed(), n_parallel=SEQUENCES + 1)
    measured = measure_steps(engine, clock=itertools.count().__next__)
    assert engine.used_sequences == 0
    assert len(measured) == len(engine.plans) - 1
    assert {seconds for _, seconds in measured} == {1}
    kinds = {(work.decode_rows, bool(work.prefill_rows)) for work, _ in measured}
    assert kinds == {(n, False) for n in (1, 2, 4, 8, 16)} | {(0, True), (8, True)}
    decoded = 15 + 12 + 2 * 9 + 4 * 6 + 8 * 2  # by the eight, before the first 64 rows beside them
    assert Work(8, 64, 8 * 65 + decoded, 64 * 65 // 2) in [work for work, _ in measured]


def test_deciding_is_timed_while_all_run_and_the_others_wait() -> None:
    steps: list[int] = []
    row = scheduler_cost(8, 50, 20, {}, lambda: steps.append(1))
    assert len(steps) == 20
    assert (row["sequences"], row["queued"], row["steps"]) == (8, 50, 20)
    assert row["admitted"] > 0
    assert 0.0 < row["p50_us"] <= row["p99_us"]


def test_a_kept_fit_is_read_and_a_missing_one_named(tmp_path: Path) -> None:
    costs, kept = read_costs("smollm2-135m-int8", RESULTS)
    assert costs.seconds(Work(1, 0, 100, 0)) > 0.0
    assert kept["shape"] == "smollm2-135m"
    with pytest.raises(SystemExit, match="fits that are: none"):
        read_costs("nothing", tmp_path)


def test_the_picture_of_policies(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace = draw(LOADS["short"].load, 30, rate=8.0, seed=3)
    simulation = Simulation(trace, LOADS["short"].options, COSTS)
    simulation.run()
    rows = [{"policy": name} | simulation.figures(Slo()) for name in ("a", "b")]
    result = {"load": "short", "costs": {"shape": "tiny", "dtype": "f32"}, "rows": rows}
    assert pictures.draw_result("simulation", result, tmp_path) == "simulation-short.svg"
    assert (tmp_path / "simulation-short.svg").stat().st_size > 1000

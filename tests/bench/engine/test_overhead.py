from __future__ import annotations

import pytest

from bench.engine.overhead import overhead, watch
from pybatcher.scheduling.plan import StepEntry


def test_what_lies_outside_of_the_passes_in_which_all_generate() -> None:
    passes = [
        (0.0, 4.0, 64),  # prompts
        (5.0, 6.0, 2),
        (6.1, 7.0, 2),
        (7.3, 8.0, 2),
        (8.1, 9.0, 2),
        (9.9, 10.0, 1),  # one has ended
    ]
    found = overhead(passes, n_callers=2)
    assert found["steps"] == 3
    assert found["outside_ms"] == pytest.approx(100)
    assert found["pass_ms"] == pytest.approx(900)
    assert found["share"] == pytest.approx(0.1 / 0.8)  # of 0.1 / 1.1, 0.3 / 1.2, 0.1 / 0.8


def test_passes_are_watched() -> None:
    class FakeEngine:
        def run_step(self, entries: list[StepEntry], masks: object) -> str:
            return f"{[entry.seq_id for entry in entries]} {masks}"

    engine = FakeEngine()
    passes = watch(engine)
    entries = [StepEntry(1, (7, 8, 9), True), StepEntry(2, (7,), True)]
    assert engine.run_step(entries, None) == "[1, 2] None"
    ((begin, end, rows),) = passes
    assert end >= begin
    assert rows == 4

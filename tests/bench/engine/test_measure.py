from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.engine.measure import Plan, numbers, summary

PLAN = Plan(prefill=(10, 20), prompt=8, steps=2, batch_sizes=(4, 1), rounds=3)


class FakeEngine:
    """An engine whose prompts take 1 s, and steps 0.1 s per live sequence."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.live = 0
        self.log = log
        self.seeds: list[int] = []

    def ask(self, call: str, **arguments: Any) -> Any:
        self.log.append(f"{self.name} {call}")
        match call:
            case "prefill":
                self.seeds.append(arguments["seed"])
                return 1.0
            case "extend":
                assert arguments["first"] == self.live
                self.live += arguments["count"]
            case "steps":
                return [0.1 * self.live, 9.0, 0.1 * self.live][: arguments["count"] + 1]
            case "clear":
                self.live = 0
        return None


def test_everybody_takes_turns_and_the_first_round_does_not_count() -> None:
    log: list[str] = []
    engines = [FakeEngine("a", log), FakeEngine("b", log)]
    turns: list[None] = []
    rows = list(PLAN.run(engines, lambda: turns.append(None)))
    assert [row["measure"] for row in rows] == [
        "prefill 10",
        "prefill 20",
        "decode B=1",
        "decode B=4",
    ]
    assert len(rows) == PLAN.n_measures
    assert len(turns) == 2 * PLAN.n_turns
    assert all(len(row["rounds"]) == 3 for row in rows)
    assert log[:4] == ["a prefill", "b prefill", "a prefill", "b prefill"]
    assert engines[0].seeds == [0, 1, 2, 3, 0, 1, 2, 3]  # never the tokens of the round before
    assert rows[0]["median"] == {"a": 10.0, "b": 10.0}
    # The median step counts, so the one of nine seconds does not.
    assert rows[3]["median"]["a"] == pytest.approx(10.0)
    assert [engine.live for engine in engines] == [0, 0]


def test_a_ratio_is_taken_within_a_round() -> None:
    row = summary("x", ["ours", "slow", "fast"], [[10, 5, 20], [30, 10, 90], [20, 20, 10]])
    assert row["median"] == {"ours": 20, "slow": 10, "fast": 20}
    assert row["ratio"] == {"slow": 2.0, "fast": 0.5}


def test_there_is_room_for_what_the_plan_does() -> None:
    settings = PLAN.settings("int8", 2)
    assert settings.n_parallel == 4
    # The first sequence lives through the rounds of both batch sizes.
    long = replace(PLAN, rounds=99).settings("int8", 2)
    assert long.n_ctx >= 4 * (8 + 2 * (99 + 1) * 2)
    assert PLAN.settings("int8", 2, longest=3000).n_ctx >= 4 * 3001


def test_numbers() -> None:
    assert numbers("1,4,16") == (1, 4, 16)
    assert numbers("") == ()

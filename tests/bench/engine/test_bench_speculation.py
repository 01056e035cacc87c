"""The benchmark of draft tokens runs, and reports a run whose tokens differ."""

from __future__ import annotations

import json

import pytest

from bench.engine import speculation

ARGUMENTS = ["--batch-sizes", "1,2", "--rounds", "1", "--max-tokens", "24", "--workloads", "circle"]


def run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["speculation", *ARGUMENTS])
    speculation.main()


def test_it_says_what_was_gained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch)
    report = json.loads(capsys.readouterr().out)
    assert [(row["workload"], row["batch"]) for row in report["results"]] == [
        ("circle", 1),
        ("circle", 2),
    ]
    for row in report["results"]:
        assert row["accepted"] > 0
        assert row["steps on"] < row["steps off"]
    assert len(report["cost of rows"]["ms"]) == 8


def test_tokens_that_differ_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = speculation.run

    def spoilt(runtime: object, requests: object, max_draft_tokens: int) -> object:
        return draw(runtime, requests[: 2 if max_draft_tokens else 1], max_draft_tokens)

    monkeypatch.setattr(speculation, "run", spoilt)
    with pytest.raises(SystemExit, match="batch of 2: the tokens differ"):
        run(monkeypatch)

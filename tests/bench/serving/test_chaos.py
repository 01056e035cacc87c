from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.common import results
from bench.serving import chaos as tool
from bench.serving.chaos import Callers, reproducible_part, stream_request
from bench.serving.faults import Fault, record_pauses, unexpected_ends
from pybatcher.testing import FakeEngine, fake_batcher


def test_the_pause_of_a_fault_is_the_longest_gap_around_it() -> None:
    faults = [Fault("SIGKILL", 10.0, noticed=0.5), Fault("SIGSTOP", 20.0, noticed=2.0)]
    # Just after the second one some tokens still came.
    record_pauses(faults, [(1.0, 9.0), (9.9, 11.0), (9.8, 11.5), (20.1, 23.0), (30.0, 40.0)])
    assert [fault.pause for fault in faults] == pytest.approx([1.7, 2.9])


def test_a_pause_is_told_in_parts() -> None:
    fault = Fault("SIGKILL", 10.0, noticed=0.25, ready=0.75, waited=0.0, pause=1.5)
    found = fault.split(start=0.5, begin=9.0)
    assert found["at"] == 1.0
    assert (found["start"], found["load"], found["replay"]) == (0.5, 0.25, 0.5)
    fault.waited = 7.0  # the next process was there already
    assert fault.split(start=0.5, begin=9.0)["start"] == 0.0


def test_a_worker_that_ends_of_its_own_is_told_of() -> None:
    class Said:
        text = "info worker 1 serves tiny after 0.50 s\nwarning worker 1 hung\n"

        def said(self) -> str:
            return self.text

    sidecar = Said()
    assert unexpected_ends(sidecar, []) == []
    sidecar.text += "info worker 2 serves tiny after 0.50 s\n"
    assert unexpected_ends(sidecar, [Fault("SIGKILL", 1.0)]) == []
    assert unexpected_ends(sidecar, [])[1:] == ["warning worker 1 hung"]


async def test_streams_that_are_others_are_told_of() -> None:
    async with fake_batcher(FakeEngine(n_ctx=4096, n_parallel=4)) as batcher:
        expected = []
        for i in range(2):
            prompt, params = stream_request(i, 6)
            expected.append(reproducible_part(await batcher.generate(prompt, **params)))
        callers = Callers(batcher, [expected[0], expected[0]], 6)
        await callers.call(0)
        await callers.call(1)
    assert callers.wrong == ["stream 1 is not what it would have been"]
    assert callers.rounds == 2
    assert sum(callers.bins) == callers.tokens == 12


def test_the_tool_strikes_and_the_streams_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(tool, "draw_result", lambda kind, result: None)
    arguments = [
        "--streams",
        "4",
        "--tokens",
        "64",
        "--kills",
        "1",
        "--stops",
        "1",
        "--aborts",
        "1",
    ]
    arguments += ["--lull", "0.2", "--hang-timeout", "1", "--option", "n_threads=1"]
    monkeypatch.setattr(sys, "argv", ["chaos", *arguments])
    tool.main()
    assert "all as undisturbed: yes" in capsys.readouterr().out
    result = json.loads((tmp_path / "chaos-tiny.json").read_text())
    faults = {fault["kind"]: fault for fault in result["blows"]}
    assert set(faults) == {"SIGKILL", "SIGSTOP", "SIGABRT"}
    for fault in faults.values():
        assert fault["pause"] > 0.0
        assert fault["noticed"] > 0.0

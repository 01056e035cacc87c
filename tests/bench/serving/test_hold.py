from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from bench.common import results
from bench.serving import hold as tool
from bench.serving.hold import HoldLimits, Sample, what_is_wrong
from bench.serving.process_watch import cpu_seconds, n_files, rss_mib
from bench.serving.sidecar_process import is_gone, open_sidecar

LAG = {"p50": 0.0, "p99": 0.001}


def samples(n: int, mib: float = 0.0, files: int = 0, in_flight: int = 8) -> list[Sample]:
    """Return a sample per second, with fixed increments."""
    return [Sample(i, 50.0 + mib * i, 20 + files * i, in_flight, 100, i) for i in range(n)]


def test_all_is_well_where_nothing_grows() -> None:
    assert what_is_wrong(LAG, LAG, samples(16), {}, HoldLimits(), 8) == []


def test_everything_that_is_wrong_is_said() -> None:
    late = {"p50": 0.0, "p99": 0.01}
    found = what_is_wrong(late, LAG, samples(16, 4.0, 1, 7), {"Oops()": 3}, HoldLimits(), 8)
    said = "\n".join(found)
    for words in ("3 times Oops()", "lag is 10.00 ms, and 1.00", "memory grew", "descriptors grew"):
        assert words in said
    assert "only 7 of 8 requests" in said


def test_the_tool_holds_requests_and_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(tool, "draw_result", lambda kind, result: None)
    arguments = ["tiny", "--minutes", "0.03", "--connections", "6", "--each", "3"]
    arguments += ["--lag-limit", "inf", "--option", "n_parallel=4", "--option", "n_threads=1"]
    monkeypatch.setattr(sys, "argv", ["hold", *arguments])
    tool.main()
    result = json.loads((tmp_path / "hold.json").read_text())
    assert result["wrong"] == []
    assert [sample["in_flight"] for sample in result["samples"]] == [18] * len(result["samples"])
    assert result["samples"][-1]["tokens"] > 0
    assert 0.0 < result["front_lag_s"]["p50"] <= result["front_lag_s"]["max"]


async def test_a_sidecar_is_watched_from_outside() -> None:
    with open_sidecar(n_ctx=256, n_parallel=1, n_threads=1) as sidecar:
        await sidecar.ready()
        worker = sidecar.worker_pids[0]
        assert not is_gone(worker)
        assert rss_mib(sidecar.pid) > 1.0
        assert 3 < sidecar.n_files < n_files(sidecar.pid)
        assert cpu_seconds(worker) > 0.0
        assert "serves" in sidecar.said()
        assert await asyncio.to_thread(sidecar.close) == {}
        assert not sidecar.is_alive
        assert is_gone(worker)


async def test_why_a_sidecar_does_not_serve_is_said() -> None:
    with open_sidecar(model="/nowhere") as sidecar, pytest.raises(RuntimeError, match="nowhere"):
        await sidecar.ready()

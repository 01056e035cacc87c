from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.common import results
from bench.serving import sidecar as tool
from bench.serving.sidecar import Turn, compare
from bench.serving.streams import ReceivedStream, read_stream
from pybatcher import Completion, Timeline, Usage
from pybatcher.testing import FakeEngine, fake_batcher


def turn(seconds: float, delays: list[float], **cpu_s: float) -> Turn:
    return Turn(seconds, delays, cpu_s)


def test_a_loss_is_that_of_a_round_and_delays_are_those_of_all_rounds() -> None:
    local = [turn(1.0, [0.001] * 10, caller=0.1), turn(2.0, [0.001] * 10, caller=0.1)]
    remote = [
        turn(1.25, [0.003] * 10, caller=0.1, front=0.2),
        turn(2.5, [0.004] * 10, caller=0.1, front=0.4),
    ]
    found = compare(local, remote)
    assert found["loss"] == pytest.approx(0.2)
    assert found["added_delay_s"]["p50"] == pytest.approx(0.0025)
    assert found["added_delay_s"]["p99"] == pytest.approx(0.003)
    assert found["sidecar"]["cpu_s_per_token"] == pytest.approx({"caller": 0.01, "front": 0.03})


def test_delays_and_gaps_of_a_stream() -> None:
    timeline = Timeline(0.0, 0.0, 1.0, 2.0, (1.0, 2.0))
    received = ReceivedStream(
        Completion("ab", (1, 2), "length", Usage(1, 0, 2), timeline), (1.5, 2.75)
    )
    assert received.delays == [0.5, 0.75]
    assert received.gaps == [1.25]


async def test_a_stream_is_read_with_the_times_of_its_tokens() -> None:
    async with fake_batcher(FakeEngine()) as batcher:
        pieces: list[object] = []
        received = await read_stream(
            batcher, [1, 2, 3], pieces.append, max_tokens=5, ignore_eos=True
        )
    assert len(received.arrivals) == len(received.completion.token_ids) == 5
    assert min(received.delays) >= 0.0
    assert len(pieces) >= 5


def test_the_tool_compares_both_on_the_shipped_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    arguments = ["tiny", "--streams", "1,3", "--tokens", "8", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["sidecar", *arguments, "--option", "n_threads=1"])
    tool.main()
    rows = json.loads((tmp_path / "sidecar-tiny.json").read_text())["rows"]
    assert [row["streams"] for row in rows] == [1, 3]
    for row in rows:
        assert row["sidecar"]["tokens_per_s"] > 0.0
        assert 0.0 < row["sidecar"]["delay_s"]["p50"] <= row["sidecar"]["delay_s"]["max"]
        assert set(row["sidecar"]["cpu_s_per_token"]) == {"caller", "front", "worker"}

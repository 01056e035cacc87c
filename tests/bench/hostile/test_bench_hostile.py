from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.common import results
from bench.hostile import socket_hostile as tool
from bench.hostile.attackers import Attack
from bench.hostile.socket_hostile import CONTROL, HostileLimits, Victim, what_is_wrong
from pybatcher.testing import FakeEngine, fake_batcher


def row(kind: str, ratio: float, rss: tuple[float, float], files: tuple[int, int]) -> Any:
    return {"kind": kind, "itl_p99_ratio": ratio, "rss_mib": rss, "files": files}


def test_everything_that_is_wrong_is_said() -> None:
    rows = [row("a", 1.1, (50.0, 60.0), (9, 9)), row("b", 1.3, (60.0, 150.0), (9, 12))]
    said = "\n".join(
        what_is_wrong(rows, ["stream 1 is another", "stream 1 is another"], HostileLimits())
    )
    for words in ("b: ITL p99 is 1.30", "b: descriptors went from 9 to 12", "grew by 100.0 MiB"):
        assert words in said
    assert said.count("stream 1 is another") == 1
    assert "a:" not in said
    assert what_is_wrong(rows[:1], [], HostileLimits()) == []
    none = row("c", float("nan"), (60.0, 60.0), (9, 9))
    assert "c: ITL p99 is nan" in "\n".join(what_is_wrong([none], [], HostileLimits()))
    # Beside a process that leaves the server alone it moves as much: that is the machine.
    control = row(CONTROL, 1.4, (50.0, 50.0), (9, 9))
    assert "ITL" not in "\n".join(what_is_wrong([control, *rows], [], HostileLimits()))


async def test_a_victim_sees_that_its_tokens_change() -> None:
    engine = FakeEngine(n_ctx=4096, n_parallel=4)
    async with fake_batcher(engine) as batcher:
        victim = Victim(batcher, 2, 5)
        assert len(await victim.stream(0.05)) % 4 == 0
        assert victim.wrong == []
        victim.expected[1] = (0,)
        await victim.stream(0.05)
    assert "stream 1 is not what it was at first" in victim.wrong


async def test_an_attacker_keeps_to_its_rate(tmp_path: Path) -> None:
    attack = Attack(tmp_path / "nowhere", seconds=0.2, rate=100.0)
    while await attack.act():
        pass
    assert 1 < attack.acts <= 30


def test_the_tool_measures_a_client_beside_an_attacker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    arguments = ["tiny", "--kinds", "connects", "--seconds", "0.4"]
    monkeypatch.setattr(sys, "argv", ["hostile", *arguments, "--itl-limit", "1e9"])
    tool.main()
    result = json.loads((tmp_path / "hostile.json").read_text())
    assert result["wrong"] == []
    assert [row["kind"] for row in result["rows"]] == [CONTROL, "connects"]
    assert [found["acts"] > 0 for found in result["rows"]] == [False, True]
    for found in result["rows"]:
        assert found["itl_s"]["p99"] > 0.0

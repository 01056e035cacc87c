from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import raw_server
from http_served import served

from bench.common import results
from bench.hostile import http_hostile as tool
from bench.hostile.http_attackers import GONE, HTTP_KINDS, READERS, SHORT, attack
from bench.hostile.socket_hostile import CONTROL, HostileLimits, what_is_wrong
from pybatcher.http import application
from pybatcher.testing import FakeEngine, fake_batcher


async def test_a_victim_sees_that_its_text_changes_and_what_it_is_refused() -> None:
    async with (
        fake_batcher(FakeEngine(n_ctx=4096, n_parallel=4)) as batcher,
        served(application(batcher)) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        victim = tool.HttpVictim(http, 2, 5)
        assert len(await victim.stream(0.05)) > 0
        assert victim.wrong == []
        victim.expected[1] = "other"
        await victim.stream(0.05)
        assert "stream 1 is not what it was at first" in victim.wrong
        await tool.HttpVictim(http, 1, 0).stream(0.01)
        refused = tool.HttpVictim(http, 1, -1)
        await refused.stream(0.01)
        assert "stream 0 has the status 400" in refused.wrong


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_an_honest_stream_beside_each_kind_is_as_it_was(kind: str) -> None:
    async with (
        fake_batcher(FakeEngine(n_ctx=2**19, n_parallel=64)) as batcher,
        raw_server.served(application(batcher), max_connections=1024) as running,
        httpx.AsyncClient(base_url=running.url, timeout=60) as http,
    ):
        victim = tool.HttpVictim(http, 1, 5)
        await victim.stream(0.01)
        attacking = attack(running.url.removeprefix("http://"), kind, 0.2, 100.0)
        n_acts, _ = await asyncio.gather(attacking, victim.stream(0.2))
        assert n_acts > 0
        await victim.stream(0.01)
        assert victim.wrong == []
        while running.server.n_connections > 1:  # noqa: ASYNC110 - its own one is left
            await asyncio.sleep(0.01)
        await batcher.close(drain=False)  # those with keys go on without their clients


def test_the_tool_measures_a_client_beside_an_attacker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    arguments = ["tiny", "--kinds", "connects", "--seconds", "0.3", "--itl-limit", "1e9"]
    arguments += ["--settle", "0.5", "--crowds", "1", "--rate", "50"]
    monkeypatch.setattr(sys, "argv", ["http_hostile", *arguments])
    tool.main()
    result = json.loads((tmp_path / "http-hostile.json").read_text())
    assert result["wrong"] == []
    assert [row["kind"] for row in result["rows"]] == [CONTROL, "connects"]
    (crowd,) = result["crowds"]
    assert crowd["acts"] > 0
    assert crowd["meanwhile"]["files"] > crowd["files"][0]
    assert crowd["files"][1] <= crowd["files"][0]
    assert [row.get("control") for row in result["rows"]] == [None, CONTROL]
    assert [found["acts"] > 0 for found in result["rows"]] == [False, True]


def test_each_row_is_compared_with_its_control() -> None:
    ratios = {
        CONTROL: 1.2,
        "connects": 1.5,
        READERS: 4.0,
        "stopped readers": 2.0,
        "gone with keys": 3.0,
    }
    rows = [{"kind": kind, "itl_p99_ratio": ratio} for kind, ratio in ratios.items()]
    tool.tell_controls(rows)
    found = {row["kind"]: row.get("itl_p99_ratio_to_control") for row in rows}
    assert found["connects"] == pytest.approx(1.25)
    assert found["stopped readers"] == pytest.approx(0.5)
    assert found[CONTROL] is found["gone with keys"] is None  # its control was not measured


@pytest.mark.parametrize(("ratio", "is_load"), [(1.8, True), (2.0, False)])
def test_what_costs_others_no_more_than_an_honest_client_is_load(
    ratio: float, is_load: bool
) -> None:
    ratios = {CONTROL: 1.0, SHORT: 1.5, GONE: ratio, "connects": 1.8}
    rows: list[Any] = [
        {"kind": kind, "itl_p99_ratio": one, "rss_mib": [50, 50], "files": [9, 9]}
        for kind, one in ratios.items()
    ]
    tool.tell_controls(rows)
    wrong = what_is_wrong(rows, [], HostileLimits(itl_ratio=1.25))
    assert [GONE in one for one in wrong].count(True) == (not is_load)
    assert any("connects" in one for one in wrong)


def test_memory_that_each_crowd_takes_is_told() -> None:
    first, second = {"rss_mib": [50.0, 130.0]}, {"rss_mib": [130.0, 133.0]}
    assert tool.what_crowds_left([]) == tool.what_crowds_left([first, second]) == []
    (said,) = tool.what_crowds_left([first, second, {"rss_mib": [133.0, 140.0]}])
    assert "10.0 MiB" in said

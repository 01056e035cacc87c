from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.common import results
from bench.common.histogram import TimeHistogram
from bench.report import draw as pictures
from bench.serving import soak as tool
from bench.serving.process_watch import ResourceUsage, resource_usage, rss_mib, watch_lag
from bench.serving.soak import Limits, PauseCheck, Soak, break_steps, grows, what_leaked
from bench.serving.soak_callers import KINDS
from pybatcher import Batcher
from pybatcher.errors import EngineError
from pybatcher.scheduling import StepEntry, StepPlan
from pybatcher.testing import FakeEngine, fake_batcher

ANY_TIME = Limits(rss_mib=inf, lag_s=inf, idle_cpu=inf)
LOOK = PauseCheck(1.0, ResourceUsage(rss_mib=50.0, files=10, threads=3, tasks=2), 0.0, ())


async def test_two_seconds_on_the_shipped_model_leave_nothing() -> None:
    async with Batcher(n_ctx=2048, n_threads=1) as batcher:
        soak = Soak(batcher, rate=100.0, busy=0.6, pause=0.01, seed=1)
        kinds, seconds = set[str](), 0.0
        while kinds != set(KINDS):  # longer than two seconds only on a machine that is very busy
            seconds += 2.0
            await soak.run(seconds)
            kinds = {ending.partition(":")[0] for ending in soak.callers.endings}
    assert soak.looks
    assert what_leaked(soak.looks, soak.lag, list(soak.callers.surprises), ANY_TIME) == []
    assert "too long: was answered" not in soak.callers.endings
    assert soak.lag.percentiles()["p99"] > 0.0
    assert soak.rss


async def test_what_a_batcher_keeps_is_seen() -> None:
    engine = FakeEngine(n_ctx=4096, n_parallel=8)
    async with fake_batcher(engine) as batcher:
        soak = Soak(batcher, rate=200.0, busy=0.05, pause=0.0, seed=1)
        seq_id = engine.seq_new()
        await soak.run(0.0)
        engine.seq_remove(seq_id)
    (look,) = soak.looks
    assert look.problems == ("1 sequences in use",)
    assert "1 sequences in use" in what_leaked(soak.looks, soak.lag, [], ANY_TIME)[0]


async def test_callers_that_never_end_are_reported() -> None:
    stuck = threading.Event()
    engine = FakeEngine(n_ctx=4096, n_parallel=8, before_step=lambda plan: stuck.wait(30) and None)
    async with fake_batcher(engine) as batcher:
        soak = Soak(batcher, rate=200.0, busy=0.3, pause=0.0, seed=1, grace_period=0.1)
        await soak.run(0.0)
        stuck.set()
    assert any("callers still waited after 0.1 s" in text for text in soak.looks[0].problems)


def test_growth_is_what_goes_on_after_warm_up() -> None:
    assert not grows([1, 2, 5, 4, 6, 6, 6, 6])  # most of it is warm-up
    assert not grows([1, 5, 6, 5, 6, 5, 6, 5])
    assert grows([1, 5, 6, 7, 8, 9, 10, 11])
    assert not grows([1, 5, 6, 7, 8, 9, 10, 11], allowed=8)
    assert not grows([1])


def test_everything_that_is_wrong_is_said() -> None:
    looks = [
        replace(LOOK, held=ResourceUsage(50.0 + 10 * i, 10 + i, 3 + i, 2 + i), idle_cpu=0.5)
        for i in range(8)
    ]
    looks[3] = replace(looks[3], problems=("2 KV blocks in use",))
    lag = TimeHistogram()
    lag.add(0.5)
    said = "\n".join(what_leaked(looks, lag, ["drop: Oops()"], Limits()))
    for word in ("after 1 s: 2 KV blocks", "drop: Oops()", "files grew from 12 to 17"):
        assert word in said
    for word in ("threads grew", "tasks grew", "memory grew", "50.0% of a core", "lag is 5"):
        assert word in said
    assert what_leaked([LOOK] * 8, TimeHistogram(), [], Limits()) == []


async def test_what_the_process_holds_is_counted(tmp_path: Path) -> None:
    before = resource_usage()
    task = asyncio.create_task(asyncio.sleep(60))
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    with (tmp_path / "file").open("w"):
        now = resource_usage()
    end.set()
    thread.join()
    task.cancel()
    grown = (now.files - before.files, now.threads - before.threads, now.tasks - before.tasks)
    assert grown == (1, 1, 1)
    block = bytearray(os.urandom(1)) * (64 << 20)
    assert rss_mib() > before.rss_mib + 32
    assert len(block) == 64 << 20


async def test_lag_is_seen() -> None:
    lag = TimeHistogram()
    watch = asyncio.create_task(watch_lag(lag))
    await asyncio.sleep(0.02)
    threading.Event().wait(0.1)  # the loop stands still
    await asyncio.sleep(0.02)
    watch.cancel()
    assert lag.percentiles()["max"] > 0.08


def test_steps_fail_after_they_were_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(tool, "time", SimpleNamespace(monotonic=lambda: now))
    engine = FakeEngine()
    plan = StepPlan((StepEntry(engine.seq_new(), (1,), True),), 0, 1)
    break_steps(engine, per_minute=60.0, seed=0)
    engine.step(plan)
    now = 200.0
    with pytest.raises(EngineError, match="on purpose"):
        engine.step(plan)
    engine.step(plan)
    assert len(engine.plans) == 3


def test_the_tool_ends_with_one_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(tool, "draw_result", lambda kind, result: None)
    monkeypatch.setattr(Soak, "_problems", lambda self: ["a page"])
    arguments = ["--minutes", "0.001", "--busy", "0.2", "--pause", "0", "--lag-limit", "inf"]
    monkeypatch.setattr(sys, "argv", ["soak", *arguments, "--option", "n_threads=1"])
    with pytest.raises(SystemExit, match="a page"):
        tool.main()
    assert "requests; loop lag" in capsys.readouterr().out
    result = json.loads((tmp_path / "soak.json").read_text())
    assert "a page" in result["leaked"][0]
    assert 0.0 < result["bystander_lag_s"]["p50"] <= result["bystander_lag_s"]["max"]


def test_the_picture_of_a_soak(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    look = {"at": 60.0, "held": {"rss_mib": 50.0}}
    lag = {"p50": 0.001, "p99": 0.002}
    result = {"rss": [(0.0, 50.0)], "looks": [look], "endings": {"a": 3}, "lag_s": lag}
    assert pictures.draw_result("soak", result, tmp_path) == "soak.svg"
    assert (tmp_path / "soak.svg").stat().st_size > 1000

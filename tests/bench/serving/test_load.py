from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench.common.slo import Slo, parse_slo, percentiles
from bench.report import draw as pictures
from bench.serving.load import describe, figures, serve
from bench.serving.traces import TraceRequest
from pybatcher.testing import FakeEngine, fake_batcher

TRACE = [
    TraceRequest(at=0.0, prompt_tokens=4, new_tokens=3),
    TraceRequest(at=1.0, prompt_tokens=4, new_tokens=3),
    TraceRequest(at=2.0, prompt_tokens=4, new_tokens=1),
    TraceRequest(at=3.0, prompt_tokens=4, new_tokens=2),
]
TIMES = [[0.5, 0.6, 0.9], [2.0, 2.1, 2.2], [0.1], None]


def test_what_the_figures_are_of() -> None:
    found = figures(TRACE, TIMES, Slo(ttft=1.0, itl=0.2))
    assert found["requests"] == 4
    assert found["finished"] == 3
    assert found["seconds"] == pytest.approx(3.2)
    assert found["ttft_s"]["p50"] == pytest.approx(0.5)
    assert found["ttft_s"]["max"] == pytest.approx(2.0)
    assert found["tpot_s"]["max"] == pytest.approx(0.2)
    assert found["itl_s"]["p50"] == pytest.approx(0.1)
    assert found["itl_s"]["max"] == pytest.approx(0.3)
    assert found["e2e_s"]["p50"] == pytest.approx(0.9)
    assert found["tokens_per_s"] == pytest.approx(7 / 3.2)
    assert found["met"] == 0.25  # the first has a gap, the second a wait, the fourth was refused
    assert found["goodput_per_s"] == pytest.approx(1 / 3.2)
    assert "25% met" in describe(found | {"policy": "defaults", "rate": 1.0})


def test_each_limit_of_an_slo_counts() -> None:
    values = [np.array([v]) for v in (1.0, 0.1, 0.3, 2.0)]
    assert Slo().met(*values).all()
    for limits in ({"ttft": 0.9}, {"tpot": 0.05}, {"itl": 0.2}, {"e2e": 1.9}):
        assert not Slo(**limits).met(*values).any()
    assert parse_slo("ttft=1.0,itl=0.2") == Slo(ttft=1.0, itl=0.2)
    assert parse_slo("ttft=1.0,itl=0.2").limits() == {"ttft": 1.0, "itl": 0.2}
    for wrong in ("ttft", "ttft=soon", "speed=3", "itl=0"):
        with pytest.raises(SystemExit, match="--slo"):
            parse_slo(wrong)


def test_nothing_has_no_percentiles() -> None:
    assert np.isnan(percentiles(np.array([np.nan]))["p99"])
    assert percentiles(np.array([1.0, np.nan, 3.0]))["p50"] == 2.0


async def test_requests_come_when_they_are_due_and_a_refused_one_is_noted() -> None:
    trace = [
        TraceRequest(at=0.0, prompt_tokens=40, new_tokens=3, group="a", shared_tokens=32),
        TraceRequest(at=0.01, prompt_tokens=40, new_tokens=5, namespace="b"),
        TraceRequest(at=0.02, prompt_tokens=400, new_tokens=5),
    ]
    ended = []
    engine = FakeEngine(n_ctx=256, n_parallel=4)
    async with fake_batcher(engine, max_draft_tokens=0) as batcher:
        times = await serve(batcher, trace, on_end=lambda: ended.append(1))
    assert [t and len(t) for t in times] == [3, 5, None]
    assert len(ended) == 3
    assert all(t is None or (t == sorted(t) and t[0] > 0) for t in times)
    prompts = [e.tokens for plan in engine.plans for e in plan.entries if len(e.tokens) == 40]
    assert len(prompts) == 2


async def test_times_count_from_when_a_request_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.serving.load.time", SimpleNamespace(monotonic=lambda: 100.0))

    class Client:
        asked: list[dict[str, object]] = []  # noqa: RUF012

        async def generate(self, prompt: list[int], **options: object) -> SimpleNamespace:
            self.asked.append(options)
            return SimpleNamespace(timeline=SimpleNamespace(token_times=(100.5, 101.0)))

    trace = [
        TraceRequest(at=0.0, prompt_tokens=4, new_tokens=2),
        TraceRequest(at=0.01, prompt_tokens=4, new_tokens=2, priority=3, namespace="b"),
    ]
    times = await serve(Client(), trace)  # type: ignore[arg-type]
    assert times == [[0.5, 1.0], [pytest.approx(0.49), pytest.approx(0.99)]]
    common = {"max_tokens": 2, "ignore_eos": True}
    assert Client.asked[0] == common | {"namespace": None}
    assert Client.asked[1] == common | {"namespace": "b", "priority": 3}


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        figures(TRACE, TIMES, Slo()) | {"policy": policy, "rate": rate}
        for policy in ("defaults", "n_batch=64")
        for rate in (1.0, 2.0)
    ]
    result = {"load": "chat", "shape": "tiny", "dtype": "f32", "rows": rows}
    assert pictures.draw_result("load", result, tmp_path) == "load-chat-tiny-f32.svg"
    assert (tmp_path / "load-chat-tiny-f32.svg").stat().st_size > 1000

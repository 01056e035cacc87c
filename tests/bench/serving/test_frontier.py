from __future__ import annotations

from pathlib import Path

import pytest

from bench.report import draw as pictures
from bench.serving.frontier import Mixed, MixedTimes, describe, figures, serve_mixed, summary
from pybatcher.testing import FakeEngine, fake_batcher


def test_gaps_count_while_the_long_prompt_is_computed() -> None:
    seen = MixedTimes(
        came=10.0,
        answered=12.0,
        streams=[[9.8, 9.9, 10.0, 10.5, 11.5, 12.5, 15.5], [9.7, 9.9, 10.1, 11.1, 12.1]],
    )
    found = figures(seen)
    assert found["decode_only_s"] == pytest.approx(0.1)
    assert found["long_ttft_s"] == pytest.approx(2.0)
    assert found["itl_p50_s"] == pytest.approx(1.0)
    assert found["itl_max_s"] == pytest.approx(1.0)  # the gap after the answer is none of them


def round_of(itl: float, ttft: float) -> dict[str, float]:
    return {
        "decode_only_s": 0.1, "itl_p50_s": itl, "itl_p99_s": itl, "itl_max_s": itl,
        "long_ttft_s": ttft,
    }  # fmt: skip


def test_ratios_are_taken_within_a_round() -> None:
    rounds = [round_of(0.2, 3.0), round_of(0.4, 30.0), round_of(0.3, 4.0)]
    no_cap = [round_of(1.0, 2.0), round_of(2.0, 15.0), round_of(1.0, 2.0)]
    point = summary({"name": "target 2 x", "itl_target_s": 0.2}, rounds, no_cap)
    assert point["itl_p99_s"] == 0.3
    assert point["long_ttft_to_no_cap"] == pytest.approx(2.0)
    assert point["itl_p99_to_target"] == pytest.approx(1.5)
    assert "1.50 x target" in describe(point)
    assert "itl_p99_to_target" not in summary({"name": "cap 16"}, rounds, no_cap)


async def test_streams_go_on_until_the_long_prompt_has_its_token() -> None:
    engine = FakeEngine(n_ctx=4096, n_parallel=4)
    options = {"n_batch": 64, "max_prefill_tokens": 32, "max_draft_tokens": 0}
    async with fake_batcher(engine, **options) as batcher:
        seen = await serve_mixed(batcher, Mixed(n_streams=3, n_prompt=8, long_prompt=320, seed=1))
    assert len(seen.streams) == 3
    mixed = [p for p in engine.plans if p.decode_rows == 3 and p.prefill_rows == 32]
    assert len(mixed) == 10  # all three generate in every step that computes the prompt
    assert seen.came < seen.answered
    assert min(len(times) for times in seen.streams) >= 16 + 9
    assert figures(seen)["long_ttft_s"] > 0.0


def test_the_picture_has_caps_and_targets(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rounds = [round_of(0.2, 3.0)]
    points = [
        summary({"name": name, "max_prefill_tokens": cap}, rounds, rounds)
        for name, cap in (("no cap", 0), ("cap 16", 16))
    ]
    points.append(
        summary(
            {"name": "target 2 x", "max_prefill_tokens": 0, "itl_target_s": 0.2}, rounds, rounds
        )
    )
    result = {
        "shape": "tiny",
        "dtype": "f32",
        "decode_only_s": 0.1,
        "load": {"n_streams": 2, "long_prompt": 64},
        "points": points,
    }
    assert pictures.draw_result("frontier", result, tmp_path) == "frontier-tiny-f32.svg"
    assert (tmp_path / "frontier-tiny-f32.svg").stat().st_size > 1000

from __future__ import annotations

from pathlib import Path

import pytest

from bench.convert import make_checkpoint
from bench.convert.shapes import GPT2
from bench.serving.published import PUBLISHED_SCALING, decode_speed, measure, scaling, table_figures


def test_the_table_of_some_times() -> None:
    found = table_figures([[0.1, 0.2, 0.4], [0.3, 0.4, 0.5]])
    assert found["ttft_p50_s"] == pytest.approx(0.2)
    assert found["itl_p99_s"] == pytest.approx(0.2, rel=0.05)
    assert found["tokens_per_s"] == pytest.approx(12.0)


def test_the_speed_while_all_generate() -> None:
    assert decode_speed([[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="did not generate together"):
        decode_speed([[0.0, 1.0], [2.0, 3.0]])


def test_their_scaling_is_that_of_the_decision_record() -> None:
    ratios = scaling(PUBLISHED_SCALING)
    assert ratios["1"] == 1.0
    assert ratios["8"] == pytest.approx(6.7, abs=0.05)
    assert ratios["16"] == pytest.approx(11.7, abs=0.05)


async def test_everything_is_measured_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_checkpoint, "CHECKPOINTS", tmp_path)
    small = {"vocab_size": 300, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}
    for name, value in small.items():
        monkeypatch.setitem(GPT2, name, value)
    path = make_checkpoint.make_checkpoint("gpt2")
    turns: list[int] = []
    found = await measure(path, "f32", 1, 8, 24, 2, lambda: turns.append(1))
    assert len(turns) == 2 * (1 + 3)
    assert found["scaling"]["1"] == 1.0
    assert set(found["tokens_per_s"]) == set(found["scaling"]) == {"1", "8", "16"}
    assert found["table"]["tokens_per_s"] > 0.0

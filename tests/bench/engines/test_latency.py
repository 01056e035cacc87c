from __future__ import annotations

import pytest

from bench.engines.latency import latencies, mixed_load, shared_prompt


def test_callers_share_their_first_tokens_and_no_more() -> None:
    arrivals = shared_prompt(n_callers=3, n_shared=50, n_own=8, n_new=4, seed=1)
    assert {a.at for a in arrivals} == {0.0}
    assert {len(a.tokens) for a in arrivals} == {58}
    assert len({tuple(a.tokens[:50]) for a in arrivals}) == 1
    assert len({tuple(a.tokens) for a in arrivals}) == 3
    other = shared_prompt(n_callers=3, n_shared=50, n_own=8, n_new=4, seed=2)
    assert other[0].tokens[:50] != arrivals[0].tokens[:50]


def test_the_long_prompt_of_the_mixed_load_is_the_last() -> None:
    load = {"n_streams": 16, "rate": 2.0, "n_prompt": 5, "n_new": 7}
    arrivals = mixed_load(**load, long_prompt=99, long_at=3.0, seed=4)  # type: ignore[arg-type]
    *streams, long = arrivals
    assert len(long.tokens) == 99
    assert long.at == 3.0
    assert all(len(s.tokens) == 5 and s.n_new == 7 for s in streams)
    at = [s.at for s in streams]
    assert at == sorted(at)
    assert 2.0 < at[-1] < 25.0


def test_latencies() -> None:
    arrivals = mixed_load(
        n_streams=2, rate=1.0, n_prompt=1, n_new=3, long_prompt=9, long_at=1.0, seed=0
    )
    first, second = (a.at for a in arrivals[:2])
    times = [
        [first + 1, first + 2, first + 3],
        [second + 3, second + 3.5, second + 4],
        [9.0, 10.0, 11.0],
    ]
    found = latencies(arrivals, times, n_long=1)
    assert found["ttft_p50_s"] == pytest.approx(2.0)
    assert found["ttft_max_s"] == pytest.approx(3.0)
    assert found["itl_p50_s"] == pytest.approx(0.75)
    assert found["long_ttft_s"] == pytest.approx(8.0)
    assert found["total_s"] == 11.0
    assert found["tokens_per_s"] == pytest.approx(9 / 11)
    assert "long_ttft_s" not in latencies(arrivals, times)

"""Time to first token and gaps between tokens, from token times in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from bench.engines.interface import Arrival

__all__ = ["latencies", "mixed_load", "shared_prompt"]

Times = Sequence[Sequence[float]]


def shared_prompt(
    *, n_callers: int, n_shared: int, n_own: int, n_new: int, seed: int
) -> list[Arrival]:
    """Return callers that arrive at once, with one system prompt and a few own tokens each."""
    rng = np.random.default_rng(seed)
    system = rng.integers(0, 256, n_shared).tolist()
    return [
        Arrival(0.0, [*system, *rng.integers(0, 256, n_own).tolist()], n_new, n_shared)
        for _ in range(n_callers)
    ]


def mixed_load(
    *, n_streams: int, rate: float, n_prompt: int, n_new: int, long_prompt: int, long_at: float,
    seed: int,
) -> list[Arrival]:  # fmt: skip
    """Return streams that arrive as a Poisson process of `rate` a second; last, a long prompt."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1.0 / rate, n_streams))
    streams = [Arrival(float(t), rng.integers(0, 256, n_prompt).tolist(), n_new) for t in at]
    return [*streams, Arrival(long_at, rng.integers(0, 256, long_prompt).tolist(), n_new)]


def latencies(arrivals: Sequence[Arrival], times: Times, n_long: int = 0) -> dict[str, float]:
    """Return percentiles over all but the last `n_long` arrivals, and the TTFT of those separately.

    Gaps between neighbouring tokens are pooled over the requests.
    """
    n_short = len(arrivals) - n_long
    ttft = [t[0] - a.at for a, t in zip(arrivals, times, strict=True)]
    gaps = [later - sooner for t in times[:n_short] for sooner, later in pairwise(t)]
    result = {
        "total_s": max(t[-1] for t in times),
        "ttft_p50_s": float(np.percentile(ttft[:n_short], 50)),
        "ttft_max_s": max(ttft[:n_short]),
        "itl_p50_s": float(np.percentile(gaps, 50)),
        "itl_p99_s": float(np.percentile(gaps, 99)),
        "tokens_per_s": sum(map(len, times)) / max(t[-1] for t in times),
    }
    if n_long:
        result["long_ttft_s"] = max(ttft[n_short:])
    return result

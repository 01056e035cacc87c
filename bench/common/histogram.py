"""`TimeHistogram`: percentiles of any number of times, in bounded memory."""

from __future__ import annotations

import math

import numpy as np

from bench.common.slo import PERCENTILES

__all__ = ["TimeHistogram"]


class TimeHistogram:
    """A histogram of times with a relative resolution of one in a hundred."""

    _LEAST = 1e-6

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._most = 0.0

    def add(self, seconds: float) -> None:
        place = int(math.log1p(seconds / self._LEAST) * 100)
        self._counts[place] = self._counts.get(place, 0) + 1
        self._most = max(self._most, seconds)

    def percentiles(self) -> dict[str, float]:
        """Return p50, p95, p99 and the maximum, as `slo.percentiles` does."""
        places = sorted(self._counts)
        if not places:
            return {**{f"p{p}": math.nan for p in PERCENTILES}, "max": math.nan}
        total = np.cumsum([self._counts[place] for place in places])
        found = {}
        for p in PERCENTILES:
            place = places[int(np.searchsorted(total, total[-1] * p / 100))]
            found[f"p{p}"] = min(self._LEAST * math.expm1((place + 0.5) / 100), self._most)
        return found | {"max": self._most}

"""`TimeHistogram`: percentiles of more times than one wants to keep."""

from __future__ import annotations

import math

import numpy as np

from .slo import PERCENTILES

__all__ = ["TimeHistogram"]


class TimeHistogram:
    """Percentiles of any number of times, to one in a hundred."""

    _LEAST = 1e-6

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._most = 0.0

    def add(self, seconds: float) -> None:
        place = int(math.log1p(seconds / self._LEAST) * 100)
        self._counts[place] = self._counts.get(place, 0) + 1
        self._most = max(self._most, seconds)

    def percentiles(self) -> dict[str, float]:
        """As slo.percentiles."""
        places = sorted(self._counts)
        if not places:
            return {**{f"p{p}": math.nan for p in PERCENTILES}, "max": math.nan}
        total = np.cumsum([self._counts[place] for place in places])
        found = {}
        for p in PERCENTILES:
            place = places[int(np.searchsorted(total, total[-1] * p / 100))]
            found[f"p{p}"] = min(self._LEAST * math.expm1((place + 0.5) / 100), self._most)
        return found | {"max": self._most}

"""Latency percentiles, and goodput: the number of requests that met a service level objective."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, fields
from math import inf
from typing import Any

import numpy as np

__all__ = ["PERCENTILES", "Slo", "parse_slo", "percentiles", "summary"]

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper limits of a request's latencies, in seconds.

    ttft: the time from its arrival to its first token. tpot: the mean gap between its tokens. itl:
        its longest gap. e2e: the time from its arrival to its last token.
    """

    ttft: float = inf
    tpot: float = inf
    itl: float = inf
    e2e: float = inf

    def met(
        self, ttft: np.ndarray, tpot: np.ndarray, longest_gap: np.ndarray, e2e: np.ndarray
    ) -> np.ndarray:
        """Return which requests met the objective. A gap of nan, for a single token, meets it."""
        breach = (ttft > self.ttft) | (tpot > self.tpot)
        return ~(breach | (longest_gap > self.itl) | (e2e > self.e2e))

    def limits(self) -> dict[str, float]:
        """Return the limits that are set."""
        return {name: limit for name, limit in asdict(self).items() if limit < inf}


def parse_slo(text: str) -> Slo:
    """Parse "ttft=1.0,itl=0.2"; ends the program with a message for bad text."""
    names = [f.name for f in fields(Slo)]
    limits = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            limits[name] = float(value)
        except ValueError:
            sys.exit(f"--slo: {part!r} is not name=seconds")
        if name not in names or not limits[name] > 0.0:
            sys.exit(f"--slo: {part!r}: the names are {', '.join(names)}, the seconds above 0")
    return Slo(**limits)


def percentiles(values: np.ndarray) -> dict[str, float]:
    """Return p50, p95, p99 and maximum of the values that are not nan; nan without any."""
    known = values[~np.isnan(values)]
    if not len(known):
        return {**{f"p{p}": float("nan") for p in PERCENTILES}, "max": float("nan")}
    found = np.percentile(known, PERCENTILES)
    return {f"p{p}": float(v) for p, v in zip(PERCENTILES, found, strict=True)} | {
        "max": float(known.max())
    }


def summary(
    slo: Slo,
    *,
    ttft: np.ndarray,
    tpot: np.ndarray,
    longest_gap: np.ndarray,
    e2e: np.ndarray,
    tokens: int,
    n_asked: int,
    seconds: float,
) -> dict[str, Any]:
    """Return the figures of finished requests (one value each), of `n_asked` in `seconds`."""
    n_met = int(slo.met(ttft, tpot, longest_gap, e2e).sum())
    return {
        "requests": n_asked,
        "finished": len(e2e),
        "seconds": seconds,
        "ttft_s": percentiles(ttft),
        "tpot_s": percentiles(tpot),
        "e2e_s": percentiles(e2e),
        "tokens_per_s": tokens / seconds,
        "requests_per_s": len(e2e) / seconds,
        "goodput_per_s": n_met / seconds,
        "met": n_met / n_asked,
    }

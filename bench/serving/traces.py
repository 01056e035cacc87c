"""Requests and their arrival times: drawn from distributions, or read from a file of JSON lines.

A line of a file is {"at": 0.5, "prompt_tokens": 120, "new_tokens": 30} and optionally the other
fields of `TraceRequest`. Lengths only: the tokens are generated, the same ones each time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import shake_128
from pathlib import Path

import numpy as np

__all__ = [
    "Lengths",
    "Load",
    "TraceRequest",
    "draw",
    "longest",
    "prompt_of",
    "read_trace",
    "write_trace",
]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A prompt of `prompt_tokens` that arrives `at` seconds after the start.

    new_tokens: length of its output. max_tokens: the request's limit; 0: equal to new_tokens.
    group, shared_tokens: the prompts of a group begin with `shared_tokens` common tokens.
    priority, namespace: as for a Batcher.
    """

    at: float
    prompt_tokens: int
    new_tokens: int
    max_tokens: int = 0
    group: str = ""
    shared_tokens: int = 0
    priority: int = 0
    namespace: str = ""

    def __post_init__(self) -> None:
        limits = {"at": 0.0, "prompt_tokens": 1, "new_tokens": 1, "max_tokens": 0}
        for name, least in limits.items():
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value >= least:
                raise ValueError(f"{name} is {value!r}; it must be at least {least:g}")
        if self.max_tokens and self.max_tokens < self.new_tokens:
            raise ValueError(
                f"max_tokens is {self.max_tokens}; it must be 0 or at least new_tokens, "
                f"{self.new_tokens}"
            )
        if not 0 <= self.shared_tokens <= self.prompt_tokens:
            raise ValueError(
                f"shared_tokens is {self.shared_tokens!r}; it must be from 0 to prompt_tokens, "
                f"{self.prompt_tokens}"
            )


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal lengths: half exceed `median`; `spread` is the deviation of the logarithm."""

    median: float
    spread: float
    most: int

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        drawn = rng.lognormal(np.log(self.median), self.spread, count)
        return np.clip(np.rint(drawn), 1, self.most).astype(np.int64)

    @property
    def mean(self) -> float:
        """The mean of the distribution, without the limit `most`."""
        return float(self.median * np.exp(self.spread**2 / 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Distributions of requests; `draw` makes a trace.

    own_tokens: of a prompt, after the shared ones. max_tokens: limit of every request; 0: the
        output's length. groups: number of groups with the same `shared_tokens` each; the k-th is
        chosen in proportion to 1 / k. in_group: share of the requests that belong to a group.
    priorities, namespaces: number of different ones, equally frequent.
    """

    own_tokens: Lengths
    new_tokens: Lengths
    max_tokens: int = 0
    groups: int = 0
    shared_tokens: int = 0
    in_group: float = 1.0
    priorities: int = 1
    namespaces: int = 1


def draw(load: Load, count: int, rate: float, seed: int) -> list[TraceRequest]:
    """Draw Poisson arrivals, `rate` a second. The same arguments give the same trace."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1.0 / rate, count))
    own, new = load.own_tokens.draw(rng, count), load.new_tokens.draw(rng, count)
    if load.max_tokens:
        new = np.minimum(new, load.max_tokens)
    groups = np.full(count, -1)
    if load.groups:
        popularity = 1.0 / np.arange(1, load.groups + 1)
        chosen = rng.choice(load.groups, count, p=popularity / popularity.sum())
        groups = np.where(rng.random(count) < load.in_group, chosen, -1)
    priorities = rng.integers(0, load.priorities, count)
    namespaces = rng.integers(0, load.namespaces, count)
    columns = (at, own, new, groups, priorities, namespaces)
    requests = []
    for t, n_own, n_new, group, priority, space in zip(*(c.tolist() for c in columns), strict=True):
        shared = load.shared_tokens if group >= 0 else 0
        requests.append(
            TraceRequest(
                at=t,
                prompt_tokens=shared + n_own,
                new_tokens=n_new,
                max_tokens=load.max_tokens,
                group=f"group {group}" if group >= 0 else "",
                shared_tokens=shared,
                priority=priority,
                namespace=f"tenant {space}" if load.namespaces > 1 else "",
            )
        )
    return requests


def prompt_of(request: TraceRequest, index: int, seed: int) -> tuple[int, ...]:
    """Return the tokens (bytes) of the trace's `index`-th request."""
    own = request.prompt_tokens - request.shared_tokens
    shared = _bytes(f"{seed} {request.group}", request.shared_tokens)
    return tuple(shared + _bytes(f"{seed} {index}", own))


def read_trace(path: Path) -> list[TraceRequest]:
    """Read the requests of a file, sorted by time. Ends the program for a malformed line."""
    known = {f.name for f in fields(TraceRequest)}
    requests = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            read = json.loads(line)
            if unknown := set(read) - known:
                raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
            requests.append(TraceRequest(**read))
        except (TypeError, ValueError) as error:
            sys.exit(f"{path}, line {number}: {error}; known are {', '.join(sorted(known))}")
    if not requests:
        sys.exit(f"{path} has no request")
    return sorted(requests, key=lambda request: request.at)


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """Write a trace as JSON lines."""
    path.write_text("".join(json.dumps(asdict(request)) + "\n" for request in requests))


def longest(requests: Sequence[TraceRequest]) -> int:
    """Return the positions of the longest sequence of a trace."""
    return max(r.prompt_tokens + (r.max_tokens or r.new_tokens) for r in requests)


def _bytes(key: str, count: int) -> bytes:
    return shake_128(key.encode()).digest(count)

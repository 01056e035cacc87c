"""Serve requests that arrive over time with an engine that is driven step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from bench.engines.interface import Arrival

__all__ = ["serve_in_steps"]


def serve_in_steps(
    arrivals: Sequence[Arrival],
    submit: Callable[[int, Arrival], None],
    step: Callable[[], Iterable[int]],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[list[float]]:
    """Return the time of each token of each arrival, in seconds from the call.

    submit: passes a request, with its index, to the engine. step: computes once and returns the
    indices of the requests that got a token, once per token. Requests that arrive during a step are
    submitted after it.
    """
    start = clock()
    times: list[list[float]] = [[] for _ in arrivals]
    ahead = sorted(range(len(arrivals)), key=lambda i: arrivals[i].at)
    live: set[int] = set()
    while ahead or live:
        while ahead and arrivals[ahead[0]].at <= clock() - start:
            live.add(ahead[0])
            submit(ahead[0], arrivals[ahead[0]])
            del ahead[0]
        if not live:
            sleep(max(0.0, arrivals[ahead[0]].at - (clock() - start)))
            continue
        got_token = list(step())
        now = clock() - start
        for i in got_token:
            times[i].append(now)
            if len(times[i]) == arrivals[i].n_new:
                live.discard(i)
    return times

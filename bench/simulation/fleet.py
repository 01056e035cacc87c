"""Replicas of the real scheduler in virtual time, with a router."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bench.common.options import configs_of
from bench.serving.traces import TraceRequest, prompt_of
from bench.simulation.costs import StepCosts
from bench.simulation.engine import END_TOKEN, SimulatedEngine
from bench.simulation.routing import Routing
from bench.simulation.run import open_bookkeeping
from pybatcher.errors import QueueFullError, RequestTooLongError
from pybatcher.params import SamplingParams
from pybatcher.ray.prefix_hashes import BLOCK, prefix_hashes
from pybatcher.scheduling import Generated, Request, Scheduler, StepResult

__all__ = ["Fleet", "FleetReplica", "ScheduledReplica"]

_END_TOKENS = frozenset({END_TOKEN})
_ROOMY = {"max_queue_requests": 2**31 - 1, "max_queue_tokens": 2**31 - 1}
_UNUSED = {"max_draft_tokens": 0, "max_prefixes": 0}


class FleetReplica(Protocol):
    """One replica in virtual time. in_flight: its requests; tokens: their prompts and outputs."""

    busy_seconds: float
    cached_tokens: int

    def submit(self, index: int, hashes: Sequence[int], at: float) -> float | None:
        """Accept a request. Return the next end of work, if it was not known before."""

    def advance(self, now: float) -> float | None:
        """End the work that ends now. Return the next end; None: nothing is in progress."""


class ScheduledReplica:
    """The real scheduler and the engine's own KV bookkeeping; `costs` gives the time of steps.

    tell: called for each token with the request's place in the trace, and whether it ends.
    """

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        options: Mapping[str, Any],
        costs: StepCosts,
        seed: int,
        tell: Callable[[int, float, bool], None],
    ) -> None:
        engine, config = configs_of({**_ROOMY, **_UNUSED, **options})
        book = open_bookkeeping(engine, config)
        self._scheduler = Scheduler(config, book)
        self._engine = SimulatedEngine(book, trace)
        self._trace, self._costs, self._seed, self._tell = trace, costs, seed, tell
        self._result: StepResult | None = None
        self.busy_seconds = 0.0

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were found in the cache."""
        return self._scheduler.statistics().cached_tokens

    def submit(self, index: int, hashes: Sequence[int], at: float) -> float | None:
        """Accept a request. Return the end of the step that begins, if the replica was idle."""
        asked = self._trace[index]
        request = Request(
            request_id=index,
            prompt=prompt_of(asked, index, self._seed),
            params=SamplingParams(max_tokens=asked.max_tokens or asked.new_tokens),
            seed=index,
            end_token_ids=_END_TOKENS,
        )
        try:
            self._scheduler.submit(request, at)
        except (QueueFullError, RequestTooLongError):
            self._tell(index, math.nan, True)
        return None if self._result is not None else self._begin(at)

    def advance(self, now: float) -> float | None:
        """End the step in progress, and begin the next. Return its end."""
        assert self._result is not None
        result, self._result = self._result, None
        for event in self._scheduler.apply(result, now):
            if isinstance(event, Generated):
                self._tell(event.request_id, now, event.finish_reason is not None)
        return self._begin(now)

    def _begin(self, now: float) -> float | None:
        plan = self._scheduler.plan(now)
        if plan is None:
            return None
        self._result, work = self._engine.step(plan)
        seconds = self._costs.seconds(work)
        self.busy_seconds += seconds
        return now + seconds


class Fleet:
    """Requests of a trace, routed to replicas that run in parallel.

    make: makes a replica from the function that receives its tokens.
    """

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        make: Callable[[Callable[[int, float, bool], None]], FleetReplica],
        n_replicas: int,
        routing: Routing,
        *,
        seed: int = 0,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._trace, self._seed, self._on_end = trace, seed, on_end
        self._routing = routing
        self._replicas = [make(self._told) for _ in range(n_replicas)]
        self._ends: list[tuple[float, int]] = []  # a heap
        self._of = array("l", [0]) * len(trace)  # the replica of each request
        self._first = array("d", [math.nan]) * len(trace)
        self._tokens = 0
        self._end = 0.0
        self._ahead = array("d")  # at each arrival, the busiest replica's requests above the mean
        self._group_hashes: dict[tuple[str, int], tuple[int, ...]] = {}

    def run(self) -> None:
        """Run the trace to its end."""
        for index, request in enumerate(self._trace):
            self._advance_until(request.at)
            self._routing.at(request.at)
            hashes = self._hashes_of(request, index)
            place = self._routing.choose(hashes)
            tokens = request.prompt_tokens + request.new_tokens
            self._of[index] = place
            self._routing.began(place, hashes, tokens)
            loads = self._routing.in_flight
            self._ahead.append(max(loads) - sum(loads) / len(loads))
            end = self._replicas[place].submit(index, hashes, request.at)
            if end is not None:
                heapq.heappush(self._ends, (end, place))
        self._advance_until(math.inf)

    def figures(self) -> dict[str, Any]:
        """Return times to the first token, the share of prompts found cached, and imbalance."""
        at = np.array([request.at for request in self._trace])
        ttft = np.array(self._first) - at
        ttft = ttft[~np.isnan(ttft)]
        busy = np.array([replica.busy_seconds for replica in self._replicas])
        prompts = sum(request.prompt_tokens for request in self._trace)
        cached = sum(replica.cached_tokens for replica in self._replicas)
        p50, p99 = np.percentile(ttft, (50, 99))
        return {
            "requests": len(ttft),
            "seconds": self._end,
            "tokens_per_s": self._tokens / self._end,
            "ttft_s": {"p50": float(p50), "p99": float(p99)},
            "cached_share": cached / prompts,
            "busiest_to_mean": float(busy.max() / busy.mean()),
            "busy_share": float(busy.mean() / self._end),
            "ahead_p99": float(np.percentile(np.array(self._ahead), 99)),
        }

    def _advance_until(self, now: float) -> None:
        ends = self._ends
        while ends and ends[0][0] <= now:
            at, place = heapq.heappop(ends)
            self._end = max(self._end, at)
            end = self._replicas[place].advance(at)
            if end is not None:
                heapq.heappush(ends, (end, place))

    def _told(self, index: int, now: float, has_ended: bool) -> None:
        self._tokens += 1
        if math.isnan(self._first[index]):
            self._first[index] = now
        if has_ended:
            request = self._trace[index]
            self._routing.ended(self._of[index], request.prompt_tokens + request.new_tokens)
            self._on_end()

    def _hashes_of(self, request: TraceRequest, index: int) -> Sequence[int]:
        """Return the hashes of a prompt's blocks. Those of a group's beginning are made once."""
        n_shared = request.shared_tokens // BLOCK
        key = (request.group, request.shared_tokens)
        if n_shared and key not in self._group_hashes:
            tokens = prompt_of(request, index, self._seed)
            self._group_hashes[key] = tuple(prefix_hashes(tokens, None, n_shared))
        shared = self._group_hashes.get(key, ()) if n_shared else ()
        # No other request has this prompt's own tokens, so that any unique numbers are correct.
        n_own = request.prompt_tokens // BLOCK - n_shared
        return (*shared, *range((index + 1) << 20, ((index + 1) << 20) + n_own))

"""`CoarseReplica`: a model of a replica by the work of its requests, without steps."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from bench.serving.traces import TraceRequest
from bench.simulation.costs import StepCosts
from pybatcher.ray.held_prefixes import HeldPrefixes
from pybatcher.ray.prefix_hashes import BLOCK

__all__ = ["CoarseReplica"]


class CoarseReplica:
    """Serves requests in the order of arrival: each waits for the work before it.

    The work is the cost of the prompt's uncached tokens and of the output's tokens, whose steps all
    running requests share. The cache is a list of blocks by their last use. The model leaves out
    the order inside a step, chunks of prompts, and preemption.

    capacity: blocks of the KV cache. tell: as in `ScheduledReplica`.
    """

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        costs: StepCosts,
        capacity: int,
        n_parallel: int,
        tell: Callable[[int, float, bool], None],
    ) -> None:
        self._trace, self._costs, self._tell = trace, costs, tell
        self._n_parallel = n_parallel
        self._held = HeldPrefixes(capacity)
        self._ends: list[tuple[float, int]] = []  # a heap by time
        self._free_at = 0.0
        self.busy_seconds = 0.0
        self.cached_tokens = 0

    def submit(self, index: int, hashes: Sequence[int], at: float) -> float:
        """Accept a request. Return its end."""
        request, costs = self._trace[index], self._costs
        cached = min(self._held.matched(hashes) * BLOCK, request.prompt_tokens - 1)
        self._held.use(hashes)
        missing = request.prompt_tokens - cached
        running = min(len(self._ends) + 1, self._n_parallel)
        context = request.prompt_tokens + request.new_tokens / 2
        token = costs.decode_row + context * costs.decode_context
        prefill = missing * (costs.prefill_row + (cached + missing / 2) * costs.prefill_context)
        work = prefill + request.new_tokens * (token + costs.step / running)
        step = costs.step + running * token
        begin = max(at, self._free_at)
        first = begin + prefill + step
        self._free_at = begin + work
        self.busy_seconds += work
        self.cached_tokens += cached
        self._tell(index, first, False)
        end = max(self._free_at, first + (request.new_tokens - 1) * step)
        heapq.heappush(self._ends, (end, index))
        return end

    def advance(self, now: float) -> None:
        """End the request that ends now."""
        _, index = heapq.heappop(self._ends)
        self._tell(index, now, True)

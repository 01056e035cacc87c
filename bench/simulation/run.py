"""Run a trace through the real scheduler in virtual time; measure the scheduler's own cost."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from bench.common.histogram import TimeHistogram
from bench.common.options import configs_of
from bench.common.slo import Slo, summary
from bench.serving.traces import TraceRequest, prompt_of
from bench.simulation.costs import StepCosts
from bench.simulation.engine import END_TOKEN, KvBookkeeping, SimulatedEngine
from pybatcher.errors import QueueFullError, RequestTooLongError
from pybatcher.params import SamplingParams
from pybatcher.params.config import BLOCK_SIZE, EngineConfig, SchedulerConfig
from pybatcher.scheduling import (
    Expired,
    Failed,
    Generated,
    Request,
    Scheduler,
    SchedulerEvent,
)

__all__ = ["SchedulerTimes", "Simulation", "open_bookkeeping"]

_END_TOKENS = frozenset({END_TOKEN})


class SchedulerTimes:
    """Seconds of `plan` and `apply` together, of each step.

    CPU time of the thread: neither call waits, and other processes' use of the core is excluded.
    """

    def __init__(self) -> None:
        self._seconds, self._sequences, self._queued = array("d"), array("l"), array("l")

    def add(self, seconds: float, n_sequences: int, n_queued: int) -> None:
        self._seconds.append(seconds)
        self._sequences.append(n_sequences)
        self._queued.append(n_queued)

    def figures(self) -> dict[str, Any]:
        """Return microseconds a step: in all, by sequences in the step, by queued requests."""
        us = np.frombuffer(self._seconds) * 1e6 if self._seconds else np.zeros(0)
        found: dict[str, Any] = {"all": self._of(us)}
        for name, values in (("sequences", self._sequences), ("queued", self._queued)):
            kind = np.array(values)
            found[name] = {}
            for low, high in ((0, 1), (1, 17), (17, 65), (65, 257), (257, 10_000), (10_000, 10**9)):
                chosen = us[(kind >= low) & (kind < high)]
                if len(chosen):
                    label = f"{low}-{high - 1}" if high < 10**9 else f"{low}-"
                    found[name][label if high > 1 else "0"] = self._of(chosen)
        return found

    @staticmethod
    def _of(us: np.ndarray) -> dict[str, float]:
        if not len(us):
            return {"steps": 0}
        p50, p99 = np.percentile(us, (50, 99))
        return {
            "steps": len(us),
            "p50_us": float(p50),
            "p99_us": float(p99),
            "max_us": float(us.max()),
        }


@cache
def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens)


def open_bookkeeping(engine: EngineConfig, config: SchedulerConfig) -> KvBookkeeping:
    """Return the KV bookkeeping of an engine with these options."""
    # Shared prefixes take sequences of their own, in addition to those of requests.
    n_prefixes: int = config.max_prefixes
    return KvBookkeeping(
        n_ctx=engine.n_ctx,
        n_parallel=engine.n_parallel + n_prefixes,
        block_size=BLOCK_SIZE if engine.block_size == "auto" else engine.block_size,
    )


class Simulation:
    """One run. options: of a Batcher; without its own limits the queue is unlimited."""

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        options: Mapping[str, Any],
        costs: StepCosts,
        *,
        seed: int = 0,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        roomy = {"max_queue_requests": 2**31 - 1, "max_queue_tokens": 2**31 - 1}
        # Synthetic tokens give no drafts, and no prefix is registered.
        unused = {"max_draft_tokens": 0, "max_prefixes": 0}
        engine, config = configs_of(roomy | unused | dict(options))
        self.book = open_bookkeeping(engine, config)
        self.scheduler = Scheduler(config, self.book)
        self.engine = SimulatedEngine(self.book, trace)
        self.times = SchedulerTimes()
        self.now = 0.0
        self._trace, self._costs, self._seed, self._on_end = trace, costs, seed, on_end
        self._coming = 0  # place of the next arrival
        self._refused = self._tokens = 0
        self._gaps = TimeHistogram()
        nan = math.nan
        self._first, self._last = array("d", [nan]) * len(trace), array("d", [nan]) * len(trace)
        self._longest, self._counts = array("d", [nan]) * len(trace), array("l", [0]) * len(trace)
        self._finished = bytearray(len(trace))

    def run(self) -> None:
        """Run to the end of the trace. Raises RuntimeError if a request waits for ever."""
        while self.step():
            pass

    def step(self) -> bool:
        """Run one step, or advance to the next arrival. Returns False at the end."""
        self._submit_until(self.now)
        begin = time.thread_time()
        plan = self.scheduler.plan(self.now)
        seconds = time.thread_time() - begin
        if plan is None:
            self._take(self.scheduler.take_events())
            if self._coming < len(self._trace):
                self.now = max(self.now, self._trace[self._coming].at)
                return True
            if self.scheduler.n_waiting:
                raise RuntimeError(f"{self.scheduler.n_waiting} requests wait, and nothing runs")
            return False
        result, work = self.engine.step(plan)
        self.now += self._costs.seconds(work)
        self._submit_until(self.now)
        begin = time.thread_time()
        events = self.scheduler.apply(result, self.now)
        seconds += time.thread_time() - begin
        self.times.add(seconds, len(plan.entries), self.scheduler.n_waiting)
        self._take(events)
        return True

    def figures(self, slo: Slo) -> dict[str, Any]:
        """Return the requests' latencies, the recomputed tokens and the scheduler's times."""
        done = np.frombuffer(self._finished, dtype=bool)
        at = np.array([request.at for request in self._trace])[done]
        first, last = np.array(self._first)[done], np.array(self._last)[done]
        n_gaps = np.array(self._counts)[done] - 1
        counts = self.scheduler.statistics()
        found = summary(
            slo,
            ttft=first - at,
            tpot=np.divide(last - first, n_gaps, out=np.full(len(at), np.nan), where=n_gaps > 0),
            longest_gap=np.array(self._longest)[done],
            e2e=last - at,
            tokens=self._tokens,
            n_asked=len(self._trace),
            seconds=self.now,
        )
        return found | {
            "itl_s": self._gaps.percentiles(),
            "refused": self._refused,
            "steps": counts.steps,
            "computed_tokens": counts.computed_tokens,
            "cached_tokens": counts.cached_tokens,
            "preemptions": self.engine.preemptions,
            "recomputed_tokens": self.engine.recomputed_tokens,
            "scheduler": self.times.figures(),
        }

    def _submit_until(self, now: float) -> None:
        """Submit all requests that have arrived by `now`, each at its own time."""
        while self._coming < len(self._trace) and self._trace[self._coming].at <= now:
            index, self._coming = self._coming, self._coming + 1
            try:
                self.scheduler.submit(self._request(index), self._trace[index].at)
            except (QueueFullError, RequestTooLongError):
                self._refused += 1
                self._on_end()

    def _request(self, index: int) -> Request:
        request = self._trace[index]
        urgency: dict[str, Any] = {"priority": request.priority} if request.priority else {}
        return Request(
            request_id=index,
            prompt=prompt_of(request, index, self._seed),
            params=_params(request.max_tokens or request.new_tokens),
            seed=index,
            end_token_ids=_END_TOKENS,
            namespace=request.namespace,
            **urgency,
        )

    def _take(self, events: Sequence[SchedulerEvent]) -> None:
        now = self.now
        for event in events:
            if isinstance(event, Generated):
                index = event.request_id
                self._tokens += 1
                if self._counts[index]:
                    gap = now - self._last[index]
                    self._gaps.add(gap)
                    if not gap <= self._longest[index]:
                        self._longest[index] = gap
                else:
                    self._first[index] = now
                self._last[index] = now
                self._counts[index] += 1
                if event.finish_reason is not None:
                    self._finished[index] = True
                    self._on_end()
            elif isinstance(event, (Failed, Expired)):
                self._refused += 1
                self._on_end()

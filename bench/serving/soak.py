"""Soak test: half an hour of random callers who leave in every possible way; then look for leaks.

    .venv/bin/python -m bench.soak --minutes 30
    .venv/bin/python -m bench.soak --minutes 30 --faults 6

Runs the model that ships inside. Load and pauses take turns. In each pause, once nothing runs, KV
is recounted, and memory, open files, threads, tasks and the idle CPU share are recorded. Under load
the event loop's lag is measured, and for comparison that of an idle process: on a busy machine both
are late. --faults makes that many steps a minute raise after they were computed; the batcher then
restarts its engine, and no caller may notice. Exits with 1 and a description if anything leaked,
grew or was late. Results go to bench/results/soak.json and docs/plots/.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.common.histogram import TimeHistogram
from bench.common.machine import describe_run
from bench.common.options import exists, parse
from bench.common.progress import Bar, bar
from bench.common.results import write_result
from bench.report.draw import draw_result
from bench.serving.process_watch import (
    IdleProcess,
    ResourceUsage,
    resource_usage,
    rss_mib,
    watch_lag,
)
from bench.serving.soak_callers import Callers
from pybatcher import Batcher
from pybatcher.errors import EngineError

__all__ = ["Limits", "PauseCheck", "Soak", "break_steps", "grows", "what_leaked"]


@dataclass(frozen=True, slots=True)
class Limits:
    """rss_mib: growth after warm-up. lag_s: the loop's p99 lag. idle_cpu: share of a core."""

    rss_mib: float = 8.0
    lag_s: float = 0.002
    idle_cpu: float = 0.01


@dataclass(frozen=True, slots=True)
class PauseCheck:
    """Resources `at` seconds, in a pause, and descriptions of problems."""

    at: float
    held: ResourceUsage
    idle_cpu: float
    problems: tuple[str, ...]


class Soak:
    """Load and pauses in turn, with a check of the batcher in every pause."""

    def __init__(
        self,
        batcher: Batcher,
        *,
        rate: float,
        busy: float,
        pause: float,
        seed: int,
        grace_period: float = 60.0,
    ) -> None:
        """rate: requests a second, for `busy` seconds. grace_period: seconds for callers to end."""
        self._batcher, self._grace_period, self._n_stuck = batcher, grace_period, 0
        self._rate, self._busy, self._pause = rate, busy, pause
        self._random = random.Random(seed)
        self._start = time.monotonic()
        self.callers = Callers(batcher, seed)
        self.lag = TimeHistogram()
        self.looks: list[PauseCheck] = []
        self.rss: list[tuple[float, float]] = []  # seconds, MiB

    async def run(self, seconds: float, on_turn: Callable[[], None] = lambda: None) -> None:
        while not self.looks or self._now() < seconds:
            await self._load()
            self.looks.append(await self._look())
            on_turn()

    async def _load(self) -> None:
        watch = asyncio.create_task(watch_lag(self.lag))
        end, tasks, noted = self._now() + self._busy, set[asyncio.Task[None]](), -math.inf
        while self._now() < end:
            task = asyncio.create_task(self.callers.ask())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if self._now() - noted > 1.0:
                noted = self._now()
                self.rss.append((noted, rss_mib()))
            await asyncio.sleep(self._random.expovariate(self._rate))
        if tasks:
            _, waiting = await asyncio.wait(set(tasks), timeout=self._grace_period)
            self._n_stuck = len(waiting)
            for task in waiting:
                task.cancel()
        watch.cancel()
        await asyncio.wait([watch])

    async def _look(self) -> PauseCheck:
        end = self._now() + self._grace_period
        while self._is_busy() and self._now() < end:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
        gc.collect()
        await asyncio.sleep(0.05)  # a message cancels collected streams
        cpu, begin = time.process_time(), time.monotonic()
        await asyncio.sleep(self._pause)
        share = (time.process_time() - cpu) / (time.monotonic() - begin)
        return PauseCheck(self._now(), resource_usage(), share, tuple(self._problems()))

    def _problems(self) -> list[str]:
        counts, problems = self._batcher.statistics(), []
        if self._n_stuck:
            problems.append(f"{self._n_stuck} callers still waited after {self._grace_period:g} s")
        if counts.queued or counts.running:
            problems.append(f"{counts.queued} requests queued and {counts.running} running")
        left = counts.kv_total_blocks - counts.kv_free_blocks - counts.kv_cached_blocks
        if left:
            problems.append(f"{left} KV blocks in use")
        engine: Any = self._batcher.runtime.engine
        if engine.used_sequences:
            problems.append(f"{engine.used_sequences} sequences in use")
        try:
            engine.check_integrity()
        except EngineError as error:
            problems.append(f"check_integrity: {error}")
        if not self._batcher.health().ok:
            problems.append(f"health: {self._batcher.health().reason}")
        return problems

    def _is_busy(self) -> bool:
        counts = self._batcher.statistics()
        return bool(counts.queued or counts.running)

    def _now(self) -> float:
        return time.monotonic() - self._start


def grows(values: Sequence[float], allowed: float = 0.0) -> bool:
    """True if all values of the later half exceed all of the earlier one, after warm-up."""
    after = values[len(values) // 4 :]
    half = len(after) // 2
    return half > 0 and min(after[half:]) > max(after[:half]) + allowed


def what_leaked(
    looks: Sequence[PauseCheck], lag: TimeHistogram, surprises: Sequence[str], limits: Limits
) -> list[str]:
    """Describe every limit that was exceeded; [] for a clean run."""
    found = [f"after {look.at:.0f} s: {problem}" for look in looks for problem in look.problems]
    found += [f"a caller got {surprise}" for surprise in surprises]
    for name in ("files", "threads", "tasks"):
        values = [getattr(look.held, name) for look in looks]
        if grows(values):
            found.append(f"{name} grew from {values[len(values) // 4]} to {values[-1]}")
    rss = [look.held.rss_mib for look in looks]
    if grows(rss, limits.rss_mib):
        found.append(f"memory grew from {rss[len(rss) // 4]:.1f} to {rss[-1]:.1f} MiB")
    idle = statistics.median(look.idle_cpu for look in looks)
    if idle > limits.idle_cpu:
        found.append(f"idle, it takes {idle:.1%} of a core")
    p99 = lag.percentiles()["p99"]
    if p99 > limits.lag_s:
        found.append(f"p99 of the loop's lag is {p99 * 1e3:.2f} ms")
    return found


def break_steps(engine: Any, per_minute: float, seed: int) -> None:
    """Make steps raise EngineError after they were computed, at random times, from now on."""
    rng, compute = random.Random(seed), engine.step
    due = time.monotonic() + rng.expovariate(per_minute / 60)

    def step(plan: Any) -> Any:
        nonlocal due
        result = compute(plan)
        if time.monotonic() >= due:
            due = time.monotonic() + rng.expovariate(per_minute / 60)
            raise EngineError("a fault, on purpose")
        return result

    engine.step = step


async def soak(a: argparse.Namespace, options: dict[str, Any], progress: Bar) -> dict[str, Any]:
    async with Batcher(**options) as batcher:
        if a.faults:
            break_steps(batcher.runtime.engine, a.faults, a.seed)
        run = Soak(batcher, rate=a.rate, busy=a.busy, pause=a.pause, seed=a.seed)

        def on_turn() -> None:
            look, held = run.looks[-1], run.looks[-1].held
            progress.now(f"{held.rss_mib:.1f} MiB, {sum(run.callers.endings.values())} requests")
            for problem in look.problems:
                progress.say(f"after {look.at:.0f} s: {problem}")
            progress.advance()

        await run.run(a.minutes * 60, on_turn)
        counts = batcher.statistics()
    limits = Limits(a.rss_limit, a.lag_limit / 1e3)
    return {
        "seconds": run.looks[-1].at,
        "endings": dict(sorted(run.callers.endings.items())),
        "lag_s": run.lag.percentiles(),
        "idle_cpu": statistics.median(look.idle_cpu for look in run.looks),
        "statistics": asdict(counts),
        "looks": [asdict(look) for look in run.looks],
        "rss": run.rss,
        "leaked": what_leaked(run.looks, run.lag, list(run.callers.surprises), limits),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=30.0, help="requests a second under load")
    parser.add_argument("--busy", type=float, default=20.0, help="seconds of load")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds without")
    parser.add_argument("--faults", type=float, default=0.0, help="steps a minute that fail")
    parser.add_argument("--rss-limit", type=float, default=8.0, help="MiB that it may grow")
    parser.add_argument("--lag-limit", type=float, default=2.0, help="ms, p99; inf: any")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    a = parser.parse_args()
    options: dict[str, Any] = {"n_ctx": 4096}
    if a.faults:
        if not exists("max_restarts"):
            sys.exit(
                "a batcher has no option max_restarts yet: its engine stays broken; no --faults"
            )
        options |= {"max_restarts": 1_000_000}
    run, options = describe_run(), options | parse(a.option)
    turns = max(1, round(a.minutes * 60 / (a.busy + a.pause)))
    bystander = IdleProcess()
    try:
        with bar(turns) as progress:
            result = {"run": run, **asyncio.run(soak(a, options, progress))}
    finally:
        beside = bystander.close()
    result["bystander_lag_s"] = beside
    lag, leaked, looks = result["lag_s"], result["leaked"], result["looks"]
    for ending, count in result["endings"].items():
        print(f"{count:8} {ending}")
    print(
        f"{result['seconds']:.0f} s, memory {looks[0]['held']['rss_mib']:.1f} to "
        f"{looks[-1]['held']['rss_mib']:.1f} MiB, {sum(result['endings'].values())} requests; "
        f"loop lag p50 {lag['p50'] * 1e3:.2f}, p99 {lag['p99'] * 1e3:.2f}, "
        f"max {lag['max'] * 1e3:.1f} ms "
        f"(of a process that does nothing: {beside['p50'] * 1e3:.2f}, {beside['p99'] * 1e3:.2f}, "
        f"{beside['max'] * 1e3:.1f}); idle {result['idle_cpu']:.2%} of a core"
    )
    print(f"wrote {write_result('soak', result)}")
    draw_result("soak", result)
    if leaked:
        sys.exit("not clean:\n  " + "\n  ".join(leaked))


if __name__ == "__main__":
    main()

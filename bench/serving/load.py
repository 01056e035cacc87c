"""Measure an open-loop load: requests arrive at their times, however many are unanswered.

    .venv/bin/python -m bench.load llama-3.2-1b --rate 0.5,1,2 --slo ttft=1.0,itl=0.2
    .venv/bin/python -m bench.load llama-3.2-1b --trace requests.jsonl --policy n_batch=256

The requests are Poisson arrivals of a named load (loads.py), or those of a file (traces.py), and
are sent to a `Batcher`. Times count from when a request was due, not from when it was sent. Goodput
is the number of requests a second that met the SLO; a refused request did not. Each rate and policy
has its own batcher. Results go to bench/results/load-*.json and docs/plots/.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.common.machine import describe_run
from bench.common.options import add_policy_arguments, policies_from
from bench.common.progress import Bar, bar
from bench.common.results import write_result
from bench.common.slo import Slo, parse_slo, percentiles, summary
from bench.convert.make_checkpoint import make_checkpoint
from bench.convert.shapes import ALL_SHAPES
from bench.engines.interface import random_tokens
from bench.report.draw import draw_result
from bench.serving.loads import LOADS, add_load_arguments, trace_from
from bench.serving.traces import TraceRequest, prompt_of
from pybatcher import Batcher, Completion, QueueFullError, RequestTooLongError

__all__ = ["figures", "serve"]

Times = list[float]


class Client(Protocol):
    """The method of a `Batcher` or of a client that a load uses."""

    async def generate(self, prompt: list[int], **options: Any) -> Completion:
        """Generate as `Batcher.generate` does."""


async def serve(
    client: Client,
    trace: Sequence[TraceRequest],
    seed: int = 0,
    on_end: Callable[[], None] = lambda: None,
) -> list[Times | None]:
    """Send the requests; return each one's token times, in seconds after it was due.

    None for a refused request. Any other error ends the run.
    """
    start = time.monotonic()  # the clock of the tokens' time stamps

    async def one(request: TraceRequest, prompt: list[int]) -> Times | None:
        options: dict[str, Any] = {"priority": request.priority} if request.priority else {}
        try:
            done = await client.generate(
                prompt,
                max_tokens=request.new_tokens,
                ignore_eos=True,
                namespace=request.namespace or None,
                **options,
            )
        except (QueueFullError, RequestTooLongError):
            return None
        finally:
            on_end()
        return [t - start - request.at for t in done.timeline.token_times]

    tasks = []
    async with asyncio.TaskGroup() as group:
        for index, request in enumerate(trace):
            prompt = list(prompt_of(request, index, seed))
            await asyncio.sleep(max(0.0, start + request.at - time.monotonic()))
            tasks.append(group.create_task(one(request, prompt)))
    return [task.result() for task in tasks]


def figures(
    trace: Sequence[TraceRequest], times: Sequence[Times | None], slo: Slo
) -> dict[str, Any]:
    """Return percentiles, throughput and goodput; gaps between tokens are pooled."""
    served = [(r.at, t) for r, t in zip(trace, times, strict=True) if t is not None]
    gaps = [[later - sooner for sooner, later in pairwise(t)] for _, t in served]
    nan = float("nan")
    found = summary(
        slo,
        ttft=np.array([t[0] for _, t in served]),
        tpot=np.array([sum(g) / len(g) if g else nan for g in gaps]),
        longest_gap=np.array([max(g, default=nan) for g in gaps]),
        e2e=np.array([t[-1] for _, t in served]),
        tokens=sum(len(t) for _, t in served),
        n_asked=len(trace),
        seconds=max((at + t[-1] for at, t in served), default=nan),
    )
    return found | {"itl_s": percentiles(np.array([gap for g in gaps for gap in g]))}


async def measure(
    checkpoint: Path, options: dict[str, Any], trace: Sequence[TraceRequest], slo: Slo,
    seed: int, progress: Bar,
) -> dict[str, Any]:  # fmt: skip
    """Measure one run on its own batcher, after one warm-up request."""
    async with Batcher(checkpoint, **options) as batcher:
        await batcher.generate(random_tokens(300, seed=1_000_000), max_tokens=4, ignore_eos=True)
        found = figures(trace, await serve(batcher, trace, seed, progress.advance), slo)
        counts = batcher.statistics()
    return found | {
        "steps": counts.steps,
        "computed_tokens": counts.computed_tokens,
        "cached_tokens": counts.cached_tokens,
    }


def describe(row: dict[str, Any]) -> str:
    """Return a result as one line of text."""
    ttft, itl = row["ttft_s"], row["itl_s"]
    return (
        f"{row['policy']:>24} {row['rate']:7.2f}/s:"
        f" TTFT p50 {ttft['p50']:.3f} p99 {ttft['p99']:.3f} s"
        f"  ITL p50 {itl['p50'] * 1e3:.1f} p99 {itl['p99'] * 1e3:.1f} ms"
        f"  {row['tokens_per_s']:.0f} tok/s  goodput {row['goodput_per_s']:.2f}/s"
        f" ({row['met']:.0%} met)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=sorted(ALL_SHAPES))
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rate", default="1", help="requests a second, one or several")
    parser.add_argument("--slo", type=parse_slo, default=Slo(ttft=1.0, itl=0.2))
    add_load_arguments(parser, requests=100)
    add_policy_arguments(parser)
    a = parser.parse_args()
    run, policies = describe_run(), policies_from(a)
    rates = [float(rate) for rate in a.rate.split(",")]
    traces = {rate: trace_from(a, rate) for rate in (rates if a.trace is None else rates[:1])}
    checkpoint = make_checkpoint(a.shape)
    # Random weights repeat themselves more than texts do, so that too many drafts would be
    # accepted.
    engine = {"dtype": a.dtype, "n_threads": a.threads, "max_draft_tokens": 0}
    engine["weights_cache"] = checkpoint.parent / "packed"
    rows = []
    with bar(len(policies) * sum(map(len, traces.values()))) as progress:
        for rate, trace in traces.items():
            for name, options in policies.items():
                progress.now(f"{name}, {rate:g}/s")
                merged = engine | dict(LOADS[a.load].options) | options
                found = asyncio.run(measure(checkpoint, merged, trace, a.slo, a.seed, progress))
                offered = len(trace) / max(trace[-1].at, 1e-9)
                rows.append({"policy": name, "rate": rate if a.trace is None else offered} | found)
                progress.say(describe(rows[-1]))
    what = a.load if a.trace is None else a.trace.stem
    subject = {"shape": a.shape, "dtype": a.dtype, "threads": a.threads, "load": what}
    result = {"run": run, **subject, "slo": a.slo.limits(), "rows": rows}
    print(f"wrote {write_result(f'load-{what}-{a.shape}-{a.dtype}', result)}")
    draw_result("load", result)


if __name__ == "__main__":
    main()

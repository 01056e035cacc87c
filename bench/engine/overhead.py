"""Measure a batcher's overhead: the share of a step that is spent outside the forward pass.

    .venv/bin/python -m bench.overhead llama-3.2-1b --dtype int8

Callers stream at once through a `Batcher`. From when all of them generate, a period runs from the
start of one forward pass to the start of the next; its part outside the compiled engine is
planning, returning samples, detokenising, delivery and the callers themselves. Results go to
bench/results/overhead-*.json.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.common.machine import describe_run
from bench.common.results import write_result
from bench.convert.make_checkpoint import make_checkpoint
from bench.convert.shapes import DTYPES, SHAPES
from bench.engines.interface import random_tokens
from pybatcher import Batcher
from pybatcher.scheduling.plan import StepEntry

Pass = tuple[float, float, int]  # begin, end, rows


def overhead(passes: Sequence[Pass], n_callers: int) -> dict[str, float]:
    """Return the overhead between neighbouring passes that both gave every caller a token."""
    pairs = [(a, b) for a, b in pairwise(passes) if a[2] == b[2] == n_callers]
    outside = [b[0] - a[1] for a, b in pairs]
    shares = [(b[0] - a[1]) / (b[0] - a[0]) for a, b in pairs]
    return {
        "steps": len(pairs),
        "pass_ms": 1e3 * statistics.median(a[1] - a[0] for a, _ in pairs),
        "outside_ms": 1e3 * statistics.median(outside),
        "share": statistics.median(shares),
    }


def watch(engine: Any) -> list[Pass]:
    """Record the times of all passes that the engine computes from now on."""
    passes: list[Pass] = []
    compute = engine.run_step

    def run_step(entries: Sequence[StepEntry], *others: Any) -> Any:
        begin = time.perf_counter()
        result = compute(entries, *others)
        end = time.perf_counter()
        passes.append((begin, end, sum(len(entry.tokens) for entry in entries)))
        return result

    engine.run_step = run_step
    return passes


async def measure(
    checkpoint: Path, dtype: str, n_threads: int, n_callers: int, n_new: int
) -> dict[str, Any]:
    options = {"dtype": dtype, "n_threads": n_threads, "n_ctx": n_callers * (n_new + 64)}
    async with Batcher(checkpoint, n_parallel=n_callers, **options) as batcher:
        passes = watch(batcher.runtime.engine)

        async def caller(seed: int) -> None:
            async for _ in batcher.stream(
                random_tokens(32, seed), max_tokens=n_new, ignore_eos=True
            ):
                pass

        await asyncio.gather(*map(caller, range(n_callers)))
    return overhead(passes, n_callers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("--dtype", default=",".join(DTYPES), help="one or several")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    a = parser.parse_args()
    run, results = describe_run(), []
    for dtype in a.dtype.split(","):
        checkpoint = make_checkpoint(a.shape)
        found = asyncio.run(measure(checkpoint, dtype, a.threads, a.callers, a.tokens))
        results.append({"dtype": dtype, "callers": a.callers, "threads": a.threads} | found)
        print(
            f"{a.shape} {dtype}, {a.callers} callers: a pass {found['pass_ms']:.2f} ms, "
            f"outside {found['outside_ms']:.3f} ms, {found['share']:.2%} of a step"
        )
    path = write_result(f"overhead-{a.shape}", {"run": run, "shape": a.shape, "results": results})
    print(f"wrote {path}")


if __name__ == "__main__":
    main()

"""Measure the compiled engine alone: prefill and decode speed, as JSON in bench/results/.

    .venv/bin/python -m bench.engine llama-3.2-1b --dtype bf16,int8,int4 --threads 1,2

Prefill of several lengths, decode steps of several batch sizes, and of one sequence with contexts
of several lengths. Decoding one sequence reads every weight once: the share of the read bandwidth
is taken, in turns, against plain reading of as much memory.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.common.machine import describe_run
from bench.common.progress import bar
from bench.common.results import write_result
from bench.convert.make_checkpoint import make_checkpoint
from bench.convert.shapes import SHAPES
from bench.convert.weights import n_weights
from bench.engine.limits import peak_for, read_limits
from bench.engine.measure import Plan, Row, add_plan_arguments, numbers, plan_from
from bench.engines.interface import Settings
from bench.engines.pybatcher_engine import open_engine
from bench.engines.worker import answer


class Local:
    """The engine in this process, with the interface of a Worker."""

    name = "pybatcher"

    def __init__(self, shape: str, settings: Settings) -> None:
        self._engine = open_engine(make_checkpoint(shape), settings)

    def ask(self, call: str, **arguments: Any) -> Any:
        """Carry out a call as `Worker.ask` does."""
        return answer(self._engine, {"call": call} | arguments)


def at_contexts(engine: Local, contexts: tuple[int, ...], plan: Plan) -> Iterator[Row]:
    """Measure decode steps of one sequence behind each context; yield a row each."""
    for context in contexts:
        engine.ask("extend", first=0, count=1, n_tokens=context)
        engine.ask("steps", count=1)
        rounds = [
            1 / statistics.median(engine.ask("steps", count=plan.steps)) for _ in range(plan.rounds)
        ]
        engine.ask("clear")
        yield {
            "measure": f"decode at {context}",
            "median": {"pybatcher": statistics.median(rounds)},
        }


def bandwidth_used(engine: Local, n_bytes: int, n_threads: int, plan: Plan) -> Row:
    """Measure bytes of weights read a second, and their share of plain reading, in turns."""
    engine.ask("extend", first=0, count=1, n_tokens=plan.prompt)
    engine.ask("steps", count=1)
    pairs = []
    for _ in range(plan.rounds):
        seconds = statistics.median(engine.ask("steps", count=plan.steps))
        reading = read_limits(n_threads, n_bytes)["read_gb_s"]
        pairs.append((n_bytes / seconds / 1e9, reading))
    engine.ask("clear")
    return {
        "weights_gb_s": statistics.median(used for used, _ in pairs),
        "read_gb_s": statistics.median(reading for _, reading in pairs),
        "of_read": statistics.median(used / reading for used, reading in pairs),
    }


def describe(result: dict[str, Any]) -> list[str]:
    """Return a row as one line of text."""
    title = f"{result['shape']} {result['dtype']}, KV {result['kv_dtype']}, "
    lines = [title + f"{result['threads']} threads, {result['engine']['cpu_target']}"]
    lines += [f"{r['measure']:>16} {r['median']['pybatcher']:9.1f} tok/s" for r in result["tok/s"]]
    used = result["bandwidth"]
    lines.append(
        f"weights at B=1: {used['weights_gb_s']:.1f} GB/s, {used['of_read']:.0%} of reading"
    )
    prefill = result["prefill_of_peak"]
    lines += [f"prefill {n}: {share:.0%} of {result['peak']}" for n, share in prefill.items()]
    return lines


def measure(
    shape: str, settings: Settings, plan: Plan, contexts: tuple[int, ...], advance: Any
) -> dict[str, Any]:
    """Measure one dtype, KV dtype and number of threads; return the result."""
    engine = Local(shape, settings)
    facts = engine.ask("facts")
    rows = []
    for row in itertools.chain(plan.run([engine], advance), at_contexts(engine, contexts, plan)):
        rows.append(row)
    n_bytes = int(facts["weight_bytes"])
    used = bandwidth_used(engine, n_bytes, settings.n_threads, plan)
    limits = read_limits(settings.n_threads, n_bytes)
    peak, gop_s = peak_for(facts["cpu_target"], settings.dtype, limits["peak_gop_s"])
    speeds = {row["measure"]: row["median"]["pybatcher"] for row in rows}
    return {
        "shape": shape,
        "dtype": settings.dtype,
        "kv_dtype": settings.kv_dtype,
        "threads": settings.n_threads,
        "engine": facts,
        "limits": limits,
        "peak": peak,
        "tok/s": rows,
        "bandwidth": used,
        "prefill_of_peak": {
            str(n): speeds[f"prefill {n}"] * 2 * n_weights(shape) / gop_s / 1e9
            for n in plan.prefill
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("--dtype", default="bf16,int8,int4", help="one or several, as those below")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--context", default="128,1024,4096,8192", help="tokens before decoding")
    add_plan_arguments(parser, threads="2", prefill="128,512,2048", rounds=3)
    a = parser.parse_args()
    plan, contexts = plan_from(a), numbers(a.context)
    grid = list(itertools.product(a.dtype.split(","), a.kv_dtype.split(","), numbers(a.threads)))
    run = describe_run()
    results = []
    with bar(len(grid) * plan.n_turns) as progress:
        for dtype, kv_dtype, n_threads in grid:
            progress.now(f"{dtype}, KV {kv_dtype}, {n_threads} threads")
            settings = plan.settings(dtype, n_threads)
            longest = max((*plan.prefill, *contexts, 0)) + (plan.rounds + 2) * plan.steps + 64
            decoding = plan.decode_length * settings.n_parallel
            settings = replace(settings, n_ctx=max(longest, decoding), kv_dtype=kv_dtype)
            results.append(measure(a.shape, settings, plan, contexts, progress.advance))
            progress.say("\n".join(describe(results[-1])))
        path = write_result(f"engine-{a.shape}", {"run": run, "results": results})
        progress.say(f"wrote {path}")


if __name__ == "__main__":
    main()

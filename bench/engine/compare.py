"""Compare pybatcher with other engines on one checkpoint in one run, in turns: A B C A B C ...

    make rivals
    .venv/bin/python -m bench.compare llama-3.2-1b --dtype int8
    .venv/bin/python -m bench.compare llama-3.2-1b --dtype q4_k_m --engines llama.cpp
    .venv/bin/python -m bench.compare llama-3.2-1b --dtype int4 --isa avx2

A machine's speed drifts with time and load, so that only ratios of neighbouring measurements are
compared: each round measures every engine, one at a time, and the median of the rounds' ratios is
the result. First all compute the logits of one prompt; the difference shows that they run the same
model and is part of the result. The JSON goes to bench/results/; `python -m bench.report` writes it
into the README. Engines that are not installed, or do not have the dtype, are left out. With --isa
all are held to an instruction set, and results go to a folder of its name; llama.cpp is compiled
for each: `make rival-llamacpp ISA=avx2`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.isa import ISAS, add_isa_argument
from bench.common.machine import describe_run
from bench.common.progress import Bar, bar
from bench.common.results import write_result
from bench.convert.make_checkpoint import make_checkpoint
from bench.convert.shapes import DTYPES, SHAPES
from bench.engine.limits import read_limits
from bench.engine.measure import Plan, Row, add_plan_arguments, plan_from
from bench.engines.engine_list import MeasuredEngine, choose
from bench.engines.interface import GGUF_TYPES, Settings
from bench.engines.worker import Worker

LOGITS_PROMPT = 512  # long enough to reveal a wrong rope
# Two engines in bf16 differ by the order of their sums. With int8 and int4 they also round the
# weights differently, which matters more for random weights. Logits of different models differ by
# sqrt(2). With GGUF types, all engines have the same weights and round activations to integers.
SAME_MODEL = {"f32": 0.02, "bf16": 0.05, "int8": 0.3, "int4": 1.2}
SAME_MODEL |= dict.fromkeys(GGUF_TYPES, 0.3)


def open_workers(
    engines: Sequence[MeasuredEngine],
    checkpoint: Path,
    settings: Settings,
    *,
    servers: bool = False,
) -> list[Worker]:
    """Start a worker process for each engine, one after another, each loaded before the next.

    Converts all checkpoints before that, while no engine takes up memory. servers: open the engines
    as servers.
    """
    for engine in engines:
        engine.convert(checkpoint, settings.dtype)
    workers = []
    for engine in engines:
        module = engine.server_module if servers else engine.stepped_module
        workers.append(
            Worker(engine.name, engine.python, module, checkpoint, settings, engine.environment)
        )
        workers[-1].ask("facts")
    return workers


def logits_differences(workers: Sequence[Worker], dtype: str) -> dict[str, float]:
    """Return each other engine's logits difference from pybatcher, relative to pybatcher's norm.

    Ends the program if a difference is too large for the same model.
    """
    ours, *theirs = (np.array(w.ask("last_logits", n_tokens=LOGITS_PROMPT)) for w in workers)
    differences = {}
    for worker, logits in zip(workers[1:], theirs, strict=True):
        difference = float(np.linalg.norm(logits - ours) / np.linalg.norm(ours))
        if not difference < SAME_MODEL[dtype]:
            sys.exit(
                f"logits of {worker.name} differ by {difference:.3f} of their norm, where "
                f"{SAME_MODEL[dtype]} is the most that one model in {dtype} does"
            )
        differences[worker.name] = difference
    return differences


def describe_row(row: Row) -> str:
    """Return a row as one line: tokens a second of each engine, and the ratios."""
    speeds = "  ".join(f"{name} {speed:8.1f}" for name, speed in row["median"].items())
    ratios = "  ".join(f"{ratio:5.2f} x {name}" for name, ratio in row["ratio"].items())
    return f"{row['measure']:>12}  {speeds}   {ratios}"


def compare(
    shape: str,
    dtype: str,
    plan: Plan,
    n_threads: int,
    engines: Sequence[MeasuredEngine],
    progress: Bar,
) -> dict[str, Any]:
    """Measure one shape and dtype with engines that have it; return the result file's content."""
    run = describe_run()
    engines = [engine for engine in engines if engine.takes(dtype)]
    progress.now(f"{shape} {dtype}: converting and loading")
    settings = plan.settings(dtype, n_threads, longest=LOGITS_PROMPT)
    workers = open_workers(engines, make_checkpoint(shape), settings)
    try:
        facts = {worker.name: worker.ask("facts") for worker in workers}
        differences = logits_differences(workers, dtype)
        limits = read_limits(n_threads, int(facts["pybatcher"]["weight_bytes"]))
        progress.say(f"{shape} {dtype}, {n_threads} threads, tokens a second")
        rows = []
        for row in plan.run(workers, progress.advance):
            rows.append(row)
            progress.now(f"{shape} {dtype}: after {row['measure']}")
            progress.say(describe_row(row))
    finally:
        for worker in workers:
            worker.close()
    return {
        "run": run,
        "shape": shape,
        "dtype": dtype,
        "threads": n_threads,
        "contestants": facts,
        "limits": limits,
        "logits_relative_difference": differences,
        "tok/s": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", nargs="+", choices=sorted(SHAPES))
    parser.add_argument("--dtype", default=",".join(DTYPES), help="one or several")
    parser.add_argument("--engines", default="", help="names; default: all installed")
    add_isa_argument(parser)
    add_plan_arguments(parser)
    arguments = parser.parse_args()
    isa = ISAS[arguments.isa]
    plan, engines = plan_from(arguments), choose(arguments.engines, isa)
    subjects = [(s, d) for s in arguments.shape for d in arguments.dtype.split(",")]
    n_measured = sum(engine.takes(dtype) for engine in engines for _, dtype in subjects)
    with bar(n_measured * plan.n_turns) as progress:
        for shape, dtype in subjects:
            result = compare(shape, dtype, plan, int(arguments.threads), engines, progress)
            result["isa"] = isa.name
            progress.say(f"wrote {write_result(f'compare-{shape}-{dtype}', result, isa.results)}")


if __name__ == "__main__":
    main()

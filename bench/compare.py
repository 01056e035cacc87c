"""pybatcher and its rivals on one checkpoint in one run, taking turns: A B C A B C ...

    make rivals
    .venv/bin/python -m bench.compare llama-3.2-1b --dtype int8

Machines drift and neighbours come and go, so only the ratio of neighbouring measurements says
something: each round measures everybody, one at a time, and the median of the rounds' ratios is
the result. First all compute the logits of one prompt, and the difference goes into the result:
they run the same model. The JSON lands in bench/results/; `python -m bench.report` puts it into
the README. Rivals that are not installed are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .contestants.contestant import Settings
from .entrants import Entrant, choose
from .limits import read_limits
from .machine import describe_run
from .make_checkpoint import make_checkpoint
from .measure import Plan, Row, add_plan_arguments, plan_from
from .progress import Bar, bar
from .results import write_result
from .shapes import DTYPES, SHAPES
from .worker import Worker

LOGITS_PROMPT = 512  # long enough to show a wrong rope
# Two engines in bf16 differ by the order of their sums; with int8 and int4 also by how each rounds
# the weights, which random weights make much of. Another model differs by sqrt(2).
SAME_MODEL = {"f32": 0.02, "bf16": 0.05, "int8": 0.3, "int4": 1.2}


def open_workers(
    entrants: Sequence[Entrant], checkpoint: Path, settings: Settings, *, servers: bool = False
) -> list[Worker]:
    """A process for each, loaded one after another: who has answered once has loaded.

    Before that every checkpoint is converted, while no engine takes up memory.
    """
    for entrant in entrants:
        entrant.convert(checkpoint, settings.dtype)
    workers = []
    for entrant in entrants:
        module = entrant.server if servers else entrant.contestant
        workers.append(Worker(entrant.name, entrant.python, module, checkpoint, settings))
        workers[-1].ask("facts")
    return workers


def logits_differences(workers: Sequence[Worker], dtype: str) -> dict[str, float]:
    """Norm of the difference of each rival's logits to ours, over that of ours.

    Ends the run where it is so large that they cannot be of one model.
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
    """A row for people: tokens a second of each, and the ratios to them."""
    speeds = "  ".join(f"{name} {speed:8.1f}" for name, speed in row["median"].items())
    ratios = "  ".join(f"{ratio:5.2f} x {name}" for name, ratio in row["ratio"].items())
    return f"{row['measure']:>12}  {speeds}   {ratios}"


def compare(
    shape: str, dtype: str, plan: Plan, n_threads: int, entrants: Sequence[Entrant], progress: Bar
) -> dict[str, Any]:
    """Everything of one shape and dtype, as it goes into the file."""
    run = describe_run()
    progress.now(f"{shape} {dtype}: converting and loading")
    settings = plan.settings(dtype, n_threads, longest=LOGITS_PROMPT)
    workers = open_workers(entrants, make_checkpoint(shape), settings)
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
    parser.add_argument("--contestants", default="", help="names; default: all installed")
    add_plan_arguments(parser)
    arguments = parser.parse_args()
    plan, entrants = plan_from(arguments), choose(arguments.contestants)
    subjects = [(s, d) for s in arguments.shape for d in arguments.dtype.split(",")]
    with bar(len(subjects) * len(entrants) * plan.n_turns) as progress:
        for shape, dtype in subjects:
            result = compare(shape, dtype, plan, int(arguments.threads), entrants, progress)
            progress.say(f"wrote {write_result(f'compare-{shape}-{dtype}', result)}")


if __name__ == "__main__":
    main()

"""pybatcher and llama.cpp on one checkpoint in one run, taking turns: A B A B ...

    make rivals
    .venv/bin/python -m bench.compare llama-3.2-1b

Machines drift and neighbours come and go, so only the ratio of two neighbouring measurements says
something: each round measures both, and the median of the rounds' ratios is the result. First
both compute the logits of one prompt, and the difference goes into the result: they run the same
model. The JSON lands in bench/results/; `python -m bench.report` puts it into the README.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .machine import describe_run
from .make_checkpoint import make_checkpoint
from .measure import Measure, add_plan_arguments, plan_from
from .shapes import SHAPES
from .worker import Worker

RESULTS = Path(__file__).parent / "results"
RIVAL_PYTHON = Path(".venv-rivals/bin/python")
SAME_MODEL = 0.05  # bf16 in two orders of summation differs by less
LOGITS_PROMPT = 512  # long enough to show a wrong rope


def logits_difference(ours: Worker, rival: Worker) -> float:
    """Norm of the difference of both logits over the rival's norm; ends the run if it is large."""
    a, b = (np.array(w.ask("logits", n_tokens=LOGITS_PROMPT)) for w in (ours, rival))
    difference = float(np.linalg.norm(a - b) / np.linalg.norm(b))
    if not difference < SAME_MODEL:
        sys.exit(f"logits differ by {difference:.3f} of their norm: not the same model")
    return difference


def compare(measure: Measure, ours: Worker, rival: Worker, rounds: int) -> dict[str, Any]:
    """Both speeds of every round and their medians. One round before them is not counted."""
    pairs = []
    for _ in range(rounds + 1):
        pairs.append([measure.run(lambda r, w=w: w.ask(**r)) for w in (ours, rival)])
    pairs = pairs[1:]
    return {
        "measure": measure.name,
        "pybatcher": statistics.median(a for a, _ in pairs),
        "rival": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
        "rounds": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    add_plan_arguments(parser)
    arguments = parser.parse_args()
    if not RIVAL_PYTHON.exists():
        sys.exit(f"{RIVAL_PYTHON} is not there: run `make rivals` first, from the repository root")
    plan = plan_from(arguments)
    settings = plan.settings(arguments.dtype, arguments.threads)
    run = describe_run()
    checkpoint = make_checkpoint(arguments.shape)
    ours = Worker(Path(sys.executable), "pybatcher_engine", checkpoint, settings)
    rival = Worker(RIVAL_PYTHON, "llama_cpp", checkpoint, settings)
    result: dict[str, Any] = {
        "run": run,
        "shape": arguments.shape,
        "dtype": arguments.dtype,
        "threads": arguments.threads,
        "contestants": [ours.ask("facts"), rival.ask("facts")],
        "logits_relative_difference": logits_difference(ours, rival),
        "tok/s": [],
    }
    for measure in plan.measures():
        row = compare(measure, ours, rival, plan.rounds)
        result["tok/s"].append(row)
        speeds = f"{row['pybatcher']:9.1f} {row['rival']:9.1f} {row['ratio']:6.2f}"
        print(f"{measure.name:>14} {speeds}", flush=True)
    ours.close()
    rival.close()
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"compare-{arguments.shape}-{arguments.dtype}.json"
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {target.relative_to(Path(__file__).parents[1])}")


if __name__ == "__main__":
    main()

"""Speed of the compiled engine alone: prefill and decode tokens a second, as JSON.

python -m bench.engine bench/checkpoints/smollm2-135m --batch-sizes 1,8,32
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from .contestants.contestant import Settings
from .contestants.pybatcher_engine import open_contestant
from .machine import describe_run
from .measure import Plan, add_plan_arguments, plan_from
from .worker import answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    add_plan_arguments(parser)
    arguments = parser.parse_args()
    plan: Plan = plan_from(arguments)
    settings: Settings = plan.settings(arguments.dtype, arguments.threads)
    run = describe_run()
    contestant = open_contestant(arguments.checkpoint, settings)
    results = {}
    for measure in plan.measures():
        speeds = [measure.run(lambda r: answer(contestant, r)) for _ in range(plan.rounds)]
        results[measure.name] = {"median": statistics.median(speeds), "rounds": speeds}
        print(f"{measure.name:>14} {statistics.median(speeds):10.1f} tok/s", file=sys.stderr)
    print(json.dumps({"run": run, "engine": contestant.facts(), "tok/s": results}, indent=2))


if __name__ == "__main__":
    main()

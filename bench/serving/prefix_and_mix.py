"""Measure requests that share a prompt, and a load that mixes short streams with a long prompt.

    .venv/bin/python -m bench.serving llama-3.2-1b --dtype int8

Engines take turns, as in `bench.compare`, with new tokens in every round, so that no cache has
them from the round before. No request warms up the shared prompt; only one with other tokens
comes before the counted ones.

shared: callers with one system prompt, all at once. The result is the time until all are done.
mixed: Poisson streams, and a long prompt among them. Gaps between tokens (ITL) and time to first
token (TTFT) are those of the streams; the long prompt's TTFT is separate.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from bench.common.isa import ISAS, add_isa_argument
from bench.common.machine import describe_run
from bench.common.options import parse
from bench.common.progress import Bar, bar
from bench.common.results import write_result
from bench.convert.make_checkpoint import make_checkpoint
from bench.convert.shapes import SHAPES
from bench.engine.compare import open_workers
from bench.engines.engine_list import MeasuredEngine, choose
from bench.engines.interface import Arrival, Settings, random_tokens
from bench.engines.latency import latencies, mixed_load, shared_prompt

Figures = dict[str, float]

# An engine's first pass has one-time costs, which must not count for a request.
WARM_UP = Arrival(0.0, random_tokens(300, seed=1_000_000), 4)


def measure(
    engines: Sequence[MeasuredEngine],
    shape: str,
    settings: Settings,
    rounds: Sequence[Sequence[Arrival]],
    n_long: int,
    progress: Bar,
) -> dict[str, Any]:
    """Return every engine's figures in every round, their medians, and the engines' facts."""
    progress.now("loading")
    workers = open_workers(engines, make_checkpoint(shape), settings, servers=True)
    per_round: list[dict[str, Figures]] = []
    try:
        facts = {worker.name: worker.ask("facts") for worker in workers}
        for worker in workers:
            worker.ask("serve", arrivals=[asdict(WARM_UP)])
        for arrivals in rounds:
            per_round.append({})
            for worker in workers:
                progress.now(worker.name)
                times = worker.ask("serve", arrivals=[asdict(a) for a in arrivals])
                per_round[-1][worker.name] = latencies(arrivals, times, n_long)
                shown = "  ".join(f"{k} {v:.3f}" for k, v in per_round[-1][worker.name].items())
                progress.say(f"{worker.name:>12}  {shown}")
                progress.advance()
    finally:
        for worker in workers:
            worker.close()
    medians = {
        name: {
            figure: statistics.median(figures[name][figure] for figures in per_round)
            for figure in per_round[0][name]
        }
        for name in facts
    }
    return {"contestants": facts, "median": medians, "rounds": per_round}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--engines", default="", help="names; default: all installed")
    add_isa_argument(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--n-batch", type=int, default=256, help="tokens of a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("shared", "mixed"), default=None)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--system-prompt", type=int, default=1024)
    parser.add_argument("--long-prompt", type=int, default=4096)
    parser.add_argument("--long-at", type=float, default=6.0, help="seconds from the start")
    parser.add_argument("--rate", type=float, default=1.0, help="streams a second")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of pybatcher"
    )
    a = parser.parse_args()
    options = parse(a.option)
    isa = ISAS[a.isa]
    engines = [engine for engine in choose(a.engines, isa) if engine.takes(a.dtype)]
    loads = {
        "shared": partial(
            shared_prompt, n_callers=a.callers, n_shared=a.system_prompt, n_own=32, n_new=32
        ),
        "mixed": partial(
            mixed_load, n_streams=a.callers, rate=a.rate, n_prompt=64, n_new=64,
            long_prompt=a.long_prompt, long_at=a.long_at,
        ),
    }  # fmt: skip
    wanted = [name for name in loads if a.only in (None, name)]
    with bar(len(wanted) * len(engines) * a.rounds) as progress:
        for name in wanted:
            run = describe_run()
            rounds = [loads[name](seed=i) for i in range(a.rounds)]
            needed = sum(len(r.tokens) + r.n_new + 64 for r in rounds[0])
            settings = Settings(
                dtype=a.dtype,
                n_ctx=-(-needed // 256) * 256,
                n_parallel=len(rounds[0]),
                n_threads=a.threads,
                n_batch=a.n_batch,
                share_prefixes=True,
                options=options,
            )
            progress.say(f"{a.shape} {a.dtype}: {name}")
            n_long = 1 if name == "mixed" else 0
            figures = measure(engines, a.shape, settings, rounds, n_long, progress)
            subject = {"shape": a.shape, "dtype": a.dtype, "threads": a.threads, "load": name}
            subject |= {"isa": isa.name, "n_batch": a.n_batch, "options": options}
            result = {"run": run, **subject, **figures}
            name_of_file = f"serving-{name}-{a.shape}-{a.dtype}"
            progress.say(f"wrote {write_result(name_of_file, result, isa.results)}")


if __name__ == "__main__":
    main()

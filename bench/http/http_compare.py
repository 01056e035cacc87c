"""Compare servers of OpenAI's API under a load that others' load generator sends, in turns.

    make rival-llama-server aiperf
    .venv/bin/python -m bench.http_compare

pybatcher's server and llama.cpp's serve one GGUF file with as many threads and as many sequences at
a time, and aiperf drives the mixed load (`bench.loads`): so many requests at a time, the same
bodies to each, other ones in every round. Per concurrency both take turns, and a ratio is the
median of the rounds' ratios: above 1 the first server is ahead. Before that, both must count the
same tokens in a prompt and have the same likely next ones. Results go to
bench/results/http-compare-*.json.

TTFT, ITL (of a request: the mean), gap (between two events) and latency are milliseconds, as aiperf
has them. CPU is that of the server's processes: what others on the machine do changes it least.
Goodput counts the requests a second that were within limits (`bench.aiperf.LIMITS`).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pybatcher
from bench.common.machine import describe_run
from bench.common.options import parse
from bench.common.progress import Bar, bar
from bench.common.results import write_result
from bench.convert.shapes import SHAPES
from bench.engines.engine_list import LLAMA_CPP, ROOT
from bench.http.aiperf import AIPERF, LIMITS, Aiperf
from bench.http.http_chats import bodies_of, make_chat_model, positions_of
from bench.http.http_servers import LLAMA_SERVER, SERVERS, RunningServer, ServedModel, start_server
from bench.serving.loads import LOADS
from bench.serving.traces import draw

Figures = Mapping[str, float]

LIKELIEST = 20  # tokens that are compared
# Two programs round weights and activations differently. Another model would share none of its
# likeliest tokens, out of 49,152.
LEAST_IN_COMMON = 5
MORE_IS_BETTER = ("tokens_per_s", "requests_per_s", *(f"good_{name}_per_s" for name in LIMITS))
COMPARED = (
    *(f"{name}_{p}_ms" for name in ("ttft", "itl", "gap", "latency") for p in ("p50", "p99")),
    *MORE_IS_BETTER,
    "cpu_ms_per_token",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a measurement. requests: of a turn, but at least two per concurrent one."""

    model: Path
    concurrencies: Sequence[int]
    requests: int
    rounds: int
    n_threads: int
    options: Mapping[str, Any]

    def bodies(self, concurrency: int, round_number: int) -> list[dict[str, Any]]:
        """Return the bodies of one turn."""
        seed = 1000 * concurrency + round_number
        count = max(self.requests, 2 * concurrency)
        return bodies_of(draw(LOADS["mixed"].load, count, 1.0, seed), seed)

    @property
    def length(self) -> int:
        """The positions that a sequence can have."""
        load = LOADS["mixed"].load
        return positions_of(load)


def check_same_model(servers: Mapping[str, RunningServer], text: str) -> dict[str, Any]:
    """Return each server's view of a prompt: its tokens, and the likely next ones in common.

    Ends the program if they serve different models.
    """
    asked = {"model": "bench", "prompt": text, "max_tokens": 1, "temperature": 0}
    found = {
        name: server.ask("/v1/completions", {**asked, "logprobs": LIKELIEST})
        for name, server in servers.items()
    }
    counts = {name: answer["usage"]["prompt_tokens"] for name, answer in found.items()}
    if len(set(counts.values())) > 1:
        sys.exit(f"the servers count different tokens in one prompt: {counts}")
    first, *others = (likeliest(answer["choices"][0]["logprobs"]) for answer in found.values())
    common = min((len(first & other) for other in others), default=LIKELIEST)
    if common < LEAST_IN_COMMON:
        sys.exit(f"of the {LIKELIEST} likeliest tokens the servers have {common} in common")
    return {"prompt_tokens": next(iter(counts.values())), "likeliest_in_common": common}


def likeliest(logprobs: Mapping[str, Any]) -> set[str]:
    """Return the texts of the likeliest first tokens, from completions or from chats."""
    if "content" in logprobs:
        return {one["token"] for one in logprobs["content"][0]["top_logprobs"]}
    return set(logprobs["top_logprobs"][0])


def ratios(first: Figures, other: Figures) -> dict[str, float | None]:
    """Return the lead of the first server over another: above 1, it is ahead in that figure.

    None if the slower server has no request within the limits.
    """
    found: dict[str, float | None] = {}
    for name in COMPARED:
        above, below = first[name], other[name]
        if name not in MORE_IS_BETTER:
            above, below = below, above
        found[name] = above / below if below else None
    return found


def summary_of(rounds: Sequence[Mapping[str, Figures]]) -> dict[str, Any]:
    """Return the medians of rounds, and the medians of their ratios to the first server."""
    first, *others = rounds[0]
    medians = {
        name: {key: statistics.median(one[name][key] for one in rounds) for key in rounds[0][name]}
        for name in rounds[0]
    }
    compared: dict[str, Any] = {}
    for other in others:
        each = [ratios(one[first], one[other]) for one in rounds]
        compared[other] = {}
        for key in COMPARED:
            known = [value for one in each if (value := one[key]) is not None]
            compared[other][key] = statistics.median(known) if known else None
    return {"median": medians, "ratio": compared}


def describe(name: str, figures: Figures) -> str:
    """Return figures as one line of text."""
    return (
        f"{name:>14}: TTFT p50 {figures['ttft_p50_ms']:.0f} p99 {figures['ttft_p99_ms']:.0f}"
        f"  ITL p50 {figures['itl_p50_ms']:.1f} p99 {figures['itl_p99_ms']:.1f}"
        f"  gap p99 {figures['gap_p99_ms']:.0f} ms  {figures['tokens_per_s']:.0f} tok/s"
        f"  {figures['cpu_ms_per_token']:.1f} ms CPU each"
        f"  {figures['requests_per_s']:.2f} requests/s, good "
        + ", ".join(f"{figures[f'good_{limits}_per_s']:.2f} {limits}" for limits in LIMITS)
    )


def measure(
    concurrency: int, plan: Plan, names: Sequence[str], generator: Aiperf, shown: Bar
) -> dict[str, Any]:
    """Measure all servers with this concurrency; return one cell of the result."""
    model = ServedModel(plan.model, plan.n_threads, concurrency, plan.length)
    rounds: list[dict[str, dict[str, float]]] = []
    with ExitStack() as stack:
        servers = {}
        for name in names:
            shown.now(f"{name}: loading")
            servers[name] = stack.enter_context(start_server(name, model, plan.options))
        warm = plan.bodies(concurrency, 999)[0]["messages"]
        for server in servers.values():  # includes the first pass, and the system prompt
            server.ask("/v1/chat/completions", {"messages": warm, "max_tokens": 4})
        same = check_same_model(servers, warm[-1]["content"])
        for number in range(plan.rounds):
            bodies = plan.bodies(concurrency, number)
            turns: dict[str, dict[str, float]] = {}
            for name in names if number % 2 == 0 else reversed(names):
                shown.now(f"{name}, {concurrency} at a time")
                before = servers[name].cpu_seconds()
                turn = generator.run(servers[name].url, bodies, concurrency)
                used = servers[name].cpu_seconds() - before
                turns[name] = turn | {"cpu_ms_per_token": 1e3 * used / turn["output_tokens"]}
                shown.say(describe(name, turns[name]))
                shown.advance()
            rounds.append({name: turns[name] for name in names})
        commands = {
            name: " ".join(server.command).replace(f"{ROOT}/", "")
            for name, server in servers.items()
        }
    cell = {"concurrency": concurrency, "requests": len(bodies), **same, "commands": commands}
    return {**cell, **summary_of(rounds), "rounds": rounds}


def versions() -> dict[str, str]:
    """Return the versions of the programs."""
    said = subprocess.run(
        [str(LLAMA_SERVER), "--version"], capture_output=True, text=True, check=False
    )
    lines = (said.stderr + said.stdout).splitlines()
    listed = subprocess.run(
        [str(AIPERF), "--version"], capture_output=True, text=True, check=False
    ).stdout
    return {
        "pybatcher": pybatcher.__version__,
        "llama-server": "; ".join(line for line in lines if line.startswith(("version", "built"))),
        "aiperf": listed.strip(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shape", nargs="?", default="smollm2-135m", choices=sorted(SHAPES))
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--concurrency", default="1,4,16,32", help="requests at a time")
    parser.add_argument(
        "--requests", type=int, default=16, help="of a turn; at least 2 for each at a time"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--servers", default=",".join(SERVERS), help="by name")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of pybatcher"
    )
    a = parser.parse_args()
    for program, target in ((LLAMA_SERVER, "rival-llama-server"), (AIPERF, "aiperf")):
        if not program.exists():
            sys.exit(f"{program} is not installed: run `make {target}` first")
    if not LLAMA_CPP.is_installed:
        sys.exit(f"{LLAMA_CPP.name} is not installed: run `make {LLAMA_CPP.make_target}` first")
    run = describe_run()
    checkpoint, model = make_chat_model(a.shape, a.dtype)
    options, names = parse(a.option), a.servers.split(",")
    concurrencies = [int(count) for count in a.concurrency.split(",")]
    plan = Plan(model, concurrencies, a.requests, a.rounds, a.threads, options)
    generator = Aiperf(checkpoint)
    cells = []
    with bar(len(concurrencies) * len(names) * a.rounds) as shown:
        for concurrency in concurrencies:
            shown.say(f"{concurrency} requests at a time")
            cells.append(measure(concurrency, plan, names, generator, shown))
            for other, found in cells[-1]["ratio"].items():
                told = "  ".join(f"{k} {v:.2f}" for k, v in found.items() if v is not None)
                shown.say(f"{'ahead of':>14} {other}: {told}")
        subject = {"shape": a.shape, "dtype": a.dtype, "threads": a.threads, "load": "mixed"}
        limits = {name: asdict(each) for name, each in LIMITS.items()}
        about = {"limits_ms": limits, "options": options, "versions": versions()}
        result = {"run": run, **subject, **about, "cells": cells}
        shown.say(f"wrote {write_result(f'http-compare-{a.shape}-{a.dtype}', result)}")


if __name__ == "__main__":
    main()

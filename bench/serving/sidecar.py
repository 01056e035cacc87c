"""Measure the cost of the sidecar, against a batcher in the caller's own process.

    .venv/bin/python -m bench.sidecar llama-3.2-1b smollm2-135m tiny

Both have the model loaded and take turns, in process, sidecar, in process, ...: a number of streams
at once, read by one process as fast as they come. The loss of throughput is taken within a round;
the result is the median of the rounds. A token's delay runs from when the batcher hands it to its
stream (`Timeline.token_times`) to when the caller has it; the delay added by the sidecar is the
difference of the percentiles. The CPU time of each process is counted too, per token.

`tiny` is the model that ships inside: it computes almost nothing, which is the worst case. Results
go to bench/results/sidecar-*.json.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.machine import describe_run
from bench.common.options import parse
from bench.common.progress import Bar, bar
from bench.common.results import write_result
from bench.common.slo import percentiles
from bench.convert.make_checkpoint import make_checkpoint
from bench.convert.shapes import SHAPES
from bench.engines.interface import random_tokens
from bench.serving.process_watch import cpu_seconds
from bench.serving.sidecar_process import open_sidecar
from bench.serving.streams import read_stream
from pybatcher import AnyBatcher, Batcher, Client

__all__ = ["SHIPPED", "Turn", "compare", "model_of", "rounds_of", "take_turn"]

SHIPPED = "tiny"
PROMPT = 32  # tokens


@dataclass(frozen=True, slots=True)
class Turn:
    """All streams once. cpu_s: CPU seconds of each process that took part."""

    seconds: float
    delays: Sequence[float]
    cpu_s: Mapping[str, float]

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of all streams together."""
        return len(self.delays) / self.seconds


def model_of(shape: str) -> Path | None:
    """Return the checkpoint of a shape; None: the model that ships inside."""
    return None if shape == SHIPPED else make_checkpoint(shape)


async def take_turn(
    batcher: AnyBatcher,
    n_streams: int,
    n_tokens: int,
    seed: int,
    pids: Mapping[str, int | None],
    **sampling: Any,
) -> Turn:
    """Run all streams once. pids: processes whose CPU time is counted, by name."""
    prompts = [random_tokens(PROMPT, seed * n_streams + i) for i in range(n_streams)]
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    begin = time.monotonic()
    received = await asyncio.gather(
        *(
            read_stream(batcher, prompt, max_tokens=n_tokens, ignore_eos=True, **sampling)
            for prompt in prompts
        )
    )
    seconds = time.monotonic() - begin
    cpu = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    return Turn(seconds, [delay for stream in received for delay in stream.delays], cpu)


def compare(local: Sequence[Turn], remote: Sequence[Turn]) -> dict[str, Any]:
    """Compare turns in process and over the sidecar. Times in seconds."""
    ratios = [b.tokens_per_s / a.tokens_per_s for a, b in zip(local, remote, strict=True)]
    sides: dict[str, Any] = {}
    for name, turns in (("in_process", local), ("sidecar", remote)):
        delays = np.array([delay for turn in turns for delay in turn.delays])
        cpu = {
            process: sum(turn.cpu_s[process] for turn in turns) / len(delays)
            for process in turns[0].cpu_s
        }
        sides[name] = {
            "tokens_per_s": statistics.median(turn.tokens_per_s for turn in turns),
            "delay_s": percentiles(delays),
            "cpu_s_per_token": cpu,
        }
    added = {
        p: sides["sidecar"]["delay_s"][p] - sides["in_process"]["delay_s"][p]
        for p in ("p50", "p99")
    }
    return {
        "loss": 1.0 - statistics.median(ratios),
        "ratios": ratios,
        "added_delay_s": added,
        **sides,
    }


async def rounds_of(
    local: Batcher,
    client: Client,
    pids: Mapping[str, int | None],
    n_streams: int,
    n_tokens: int,
    n_rounds: int,
    on_turn: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Measure this number of streams. The first round warms up and is not counted."""
    turns: tuple[list[Turn], list[Turn]] = ([], [])
    for number in range(n_rounds + 1):
        for batcher, watched, kept in (
            (local, {"caller": None}, turns[0]),
            (client, pids, turns[1]),
        ):
            turn = await take_turn(batcher, n_streams, n_tokens, number, watched)
            on_turn()
            if number:
                kept.append(turn)
    return {"streams": n_streams, "tokens": n_tokens, "rounds": n_rounds, **compare(*turns)}


async def measure(
    shape: str, options: dict[str, Any], sizes: Sequence[int], tokens: int, rounds: int, shown: Bar
) -> dict[str, Any]:
    model = model_of(shape)
    options = {"n_ctx": max(sizes) * (tokens + PROMPT + 16), "n_parallel": max(sizes)} | options
    shown.now(f"{shape}: loading")
    rows = []
    given: dict[str, Any] = {} if model is None else {"model": str(model)}
    with open_sidecar(**given, **options, log_level="warning") as sidecar:
        async with Batcher(model, **options) as local:
            await sidecar.ready()
            async with Client(sidecar.socket) as client:
                pids = {"caller": None, "front": sidecar.pid, "worker": sidecar.worker_pids[0]}
                for size in sizes:
                    shown.now(f"{shape}: {size} streams")
                    row = await rounds_of(local, client, pids, size, tokens, rounds, shown.advance)
                    shown.say(_line(shape, row))
                    rows.append(row)
        sidecar.close()
    return {"shape": shape, "options": options, "rows": rows}


def _line(shape: str, row: Mapping[str, Any]) -> str:
    cpu = ", ".join(
        f"{name} {value * 1e6:.0f}" for name, value in row["sidecar"]["cpu_s_per_token"].items()
    )
    own = row["in_process"]["cpu_s_per_token"]["caller"]
    delays = [row[side]["delay_s"] for side in ("in_process", "sidecar")]
    told = ", ".join(f"p50 {d['p50'] * 1e6:.0f} p99 {d['p99'] * 1e6:.0f}" for d in delays)
    return (
        f"{shape}, {row['streams']} streams: {row['sidecar']['tokens_per_s']:.0f} tokens a second, "
        f"loss {row['loss']:.1%}; delay us, in process and sidecar: {told}; "
        f"computed a token, us: in process {own * 1e6:.0f}; {cpu}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shapes", nargs="+", choices=[*sorted(SHAPES), SHIPPED])
    parser.add_argument("--streams", default="1,8,32", help="how many at once; one or several")
    parser.add_argument("--tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--rounds", type=int, default=3, help="that count; one before warms up")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of both batchers"
    )
    a = parser.parse_args()
    sizes = [int(size) for size in a.streams.split(",")]
    # Drafts depend on the moment at which a request arrives, so that rounds would differ.
    options = {"dtype": a.dtype, "max_draft_tokens": 0} | parse(a.option)
    run = describe_run()
    with bar(len(a.shapes) * len(sizes) * 2 * (a.rounds + 1)) as shown:
        for shape in a.shapes:
            found = asyncio.run(measure(shape, options, sizes, a.tokens, a.rounds, shown))
            shown.say(f"wrote {write_result(f'sidecar-{shape}', {'run': run, **found})}")


if __name__ == "__main__":
    main()

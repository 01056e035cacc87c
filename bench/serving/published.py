"""Compare with figures that others published of batching on a CPU.

    .venv/bin/python -m bench.published gpt2 --dtype f32,bf16,int8

The table of a GPT-2 server that groups prefills and caches prefixes (RoseLLM): 32 prompts at once,
8 tokens each. And the scaling of a batcher of the Elixir world (its ADR 005): tokens a second with
1, 8 and 16 sequences. Their machines differ from this one: of the second, only ratios compare.
Random weights of the same shape. Results go to bench/results/published-*.json.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.machine import describe_run
from bench.common.progress import bar
from bench.common.results import write_result
from bench.convert.make_checkpoint import make_checkpoint
from bench.convert.shapes import ALL_SHAPES
from bench.engines.interface import random_tokens
from bench.serving.load import serve
from bench.serving.traces import TraceRequest
from pybatcher import Batcher

__all__ = ["PUBLISHED_SCALING", "PUBLISHED_TABLE", "at_once", "scaling", "table_figures"]

PUBLISHED_TABLE = {"ttft_p50_s": 0.143, "itl_p99_s": 0.150, "tokens_per_s": 254.0}
"""The figures for 32 prompts of 8 tokens each, with GPT-2 on a CPU, after their change."""

PUBLISHED_SCALING = {1: 30.0, 8: 200.0, 16: 350.0}
"""Tokens a second by the number of sequences."""

_PROMPTS, _TOKENS = 32, 8


def at_once(count: int, n_prompt: int, n_new: int) -> list[TraceRequest]:
    """Return requests that all arrive at once."""
    return [TraceRequest(at=0.0, prompt_tokens=n_prompt, new_tokens=n_new) for _ in range(count)]


def table_figures(times: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return TTFT p50, ITL p99 and throughput, from token times in seconds."""
    gaps = [later - sooner for t in times for sooner, later in pairwise(t)]
    return {
        "ttft_p50_s": statistics.median(t[0] for t in times),
        "itl_p99_s": float(np.percentile(gaps, 99)),
        "tokens_per_s": sum(map(len, times)) / max(t[-1] for t in times),
    }


def decode_speed(times: Sequence[Sequence[float]]) -> float:
    """Return tokens a second from when all generate to when the first has ended."""
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    if not begin < end:
        raise ValueError("the requests did not generate together; give them more tokens")
    return sum(begin < t <= end for of_one in times for t in of_one) / (end - begin)


def scaling(speeds: dict[int, float]) -> dict[str, float]:
    """Return, by number of sequences, the speed relative to one sequence."""
    return {str(size): speed / speeds[1] for size, speed in speeds.items()}


async def measure(
    checkpoint: Path, dtype: str, n_threads: int, n_prompt: int, n_new: int, rounds: int,
    on_turn: Callable[[], None],
) -> dict[str, Any]:  # fmt: skip
    """Measure in turns: table, 1, 8, 16 sequences, table, ... Returns medians of the rounds."""
    sizes = tuple(PUBLISHED_SCALING)
    options: dict[str, Any] = {
        "dtype": dtype,
        "n_threads": n_threads,
        "n_parallel": _PROMPTS,
        "n_ctx": _PROMPTS * (-(-(n_prompt + max(n_new, _TOKENS)) // 32) * 32),
        "n_batch": max(512, _PROMPTS * n_prompt),
        "max_draft_tokens": 0,  # random weights repeat themselves more than texts do
        "weights_cache": checkpoint.parent / "packed",
    }
    tables, speeds = [], []
    async with Batcher(checkpoint, **options) as batcher:

        async def times_of(count: int, n_tokens: int, seed: int) -> list[list[float]]:
            found = await serve(batcher, at_once(count, n_prompt, n_tokens), seed)
            on_turn()
            return [times for times in found if times is not None]

        await batcher.generate(random_tokens(n_prompt, seed=1_000_000), max_tokens=4)
        for number in range(rounds):
            tables.append(table_figures(await times_of(_PROMPTS, _TOKENS, number)))
            speeds.append(
                {
                    size: decode_speed(await times_of(size, n_new, 1000 * size + number))
                    for size in sizes
                }
            )
    ratios = [scaling(of_round) for of_round in speeds]
    return {
        "dtype": dtype,
        "table": {name: statistics.median(t[name] for t in tables) for name in tables[0]},
        "tokens_per_s": {str(size): statistics.median(s[size] for s in speeds) for size in sizes},
        "scaling": {str(size): statistics.median(r[str(size)] for r in ratios) for size in sizes},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=sorted(ALL_SHAPES))
    parser.add_argument("--dtype", default="f32,bf16,int8", help="one or several")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=32, help="tokens; theirs are not known")
    parser.add_argument("--tokens", type=int, default=48, help="of each sequence of the scaling")
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    run, checkpoint, results = describe_run(), make_checkpoint(a.shape), []
    dtypes = a.dtype.split(",")
    turns = 1 + len(PUBLISHED_SCALING)
    with bar(len(dtypes) * a.rounds * turns) as progress:
        for dtype in dtypes:
            progress.now(f"{a.shape} {dtype}")
            found = asyncio.run(
                measure(
                    checkpoint, dtype, a.threads, a.prompt, a.tokens, a.rounds, progress.advance
                )
            )
            results.append(found)
            table = found["table"]
            progress.say(
                f"{a.shape} {dtype}: TTFT p50 {table['ttft_p50_s'] * 1e3:.0f} ms, ITL p99 "
                f"{table['itl_p99_s'] * 1e3:.0f} ms, {table['tokens_per_s']:.0f} tok/s; scaling "
                + ", ".join(f"{size}: {ratio:.1f}" for size, ratio in found["scaling"].items())
            )
    theirs = {
        "table": PUBLISHED_TABLE,
        "tokens_per_s": {str(size): speed for size, speed in PUBLISHED_SCALING.items()},
        "scaling": scaling(PUBLISHED_SCALING),
    }
    subject = {"shape": a.shape, "threads": a.threads, "prompt": a.prompt, "tokens": a.tokens}
    result = {"run": run, **subject, "published": theirs, "results": results}
    print(f"wrote {write_result(f'published-{a.shape}', result)}")


if __name__ == "__main__":
    main()

"""Measure time to first token against gaps between tokens, over chunk sizes and gap targets.

    .venv/bin/python -m bench.frontier llama-3.2-1b --dtype int8
    .venv/bin/python -m bench.frontier smollm2-135m --long-prompt 1024 --targets ""

Short streams generate; then a long prompt arrives. Measured until its first token: the gaps
between the streams' tokens (ITL), and the time of the prompt (TTFT). A small `max_prefill_tokens`
keeps the gaps short and delays the prompt; `itl_target` sets the gap in seconds instead. Targets
are given as multiples of a decode-only step, which is measured in the same run.

Settings take turns, each with its own batcher: cap 0, cap 32, ..., target 1.5 x, ..., and again.
Ratios are taken within a round. Results go to bench/results/frontier-*.json and docs/plots/.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.machine import describe_run
from bench.common.options import exists, parse
from bench.common.progress import bar
from bench.common.results import write_result
from bench.convert.make_checkpoint import make_checkpoint
from bench.convert.shapes import ALL_SHAPES
from bench.engine.measure import numbers
from bench.engines.interface import random_tokens
from bench.report.draw import draw_result
from pybatcher import Batcher

__all__ = ["Mixed", "MixedTimes", "figures", "serve_mixed", "summary"]


_GENERATING = 16  # tokens of every stream before the long prompt arrives
_WARM_UP = 1024  # the most tokens of the long prompt that warms up


@dataclass(frozen=True, slots=True)
class Mixed:
    """Streams with `n_prompt` tokens each, and a long prompt that arrives among them."""

    n_streams: int
    n_prompt: int
    long_prompt: int
    seed: int

    @property
    def most_tokens(self) -> int:
        """The most tokens of a stream: one for each token of the long prompt, at one per step."""
        return 2 * _GENERATING + self.long_prompt

    @property
    def positions(self) -> int:
        """The KV positions that it needs, in whole blocks."""
        lengths = [self.n_prompt + self.most_tokens] * self.n_streams + [self.long_prompt]
        return sum(-(-length // 256) * 256 for length in lengths)


@dataclass(frozen=True, slots=True)
class MixedTimes:
    """The times of events, on one clock: arrival and first token of the long prompt; all tokens."""

    came: float
    answered: float
    streams: list[list[float]]


async def serve_mixed(batcher: Batcher, load: Mixed) -> MixedTimes:
    """Run the streams until the long prompt has its first token."""
    rng_seed = load.seed * 1000
    times: list[list[float]] = [[] for _ in range(load.n_streams)]
    all_generate, over = asyncio.Event(), asyncio.Event()

    async def stream(place: int) -> None:
        prompt = random_tokens(load.n_prompt, rng_seed + place + 1)
        async with batcher.stream(prompt, max_tokens=load.most_tokens, ignore_eos=True) as pieces:
            async for _ in pieces:
                times[place].append(time.monotonic())
                if min(map(len, times)) >= _GENERATING:
                    all_generate.set()
                if over.is_set():
                    return

    async with asyncio.TaskGroup() as group:
        for place in range(load.n_streams):
            group.create_task(stream(place))
        await all_generate.wait()
        prompt = random_tokens(load.long_prompt, rng_seed)
        came = time.monotonic()
        done = await batcher.generate(prompt, max_tokens=1, ignore_eos=True)
        over.set()
    return MixedTimes(came, done.timeline.first_token, times)


def figures(seen: MixedTimes) -> dict[str, float]:
    """Return, in seconds, the gaps that end during the prompt, the gaps before it, and its TTFT."""
    before, beside = [], []
    for times in seen.streams:
        for sooner, later in pairwise(times):
            if later <= seen.came:
                before.append(later - sooner)
            elif sooner < seen.answered:
                beside.append(later - sooner)
    p50, p99 = np.percentile(beside, (50, 99))
    return {
        "decode_only_s": statistics.median(before),
        "itl_p50_s": float(p50),
        "itl_p99_s": float(p99),
        "itl_max_s": max(beside),
        "long_ttft_s": seen.answered - seen.came,
    }


async def measure(checkpoint: Path, options: dict[str, Any], load: Mixed) -> dict[str, float]:
    """Measure one turn on a batcher of its own, after a warm-up with streams and a prompt."""
    async with Batcher(checkpoint, **options) as batcher:
        # A scheduler that fits a model of step times needs such steps first.
        warm_up = min(load.long_prompt, _WARM_UP)
        await serve_mixed(batcher, replace(load, long_prompt=warm_up, seed=load.seed + 500))
        return figures(await serve_mixed(batcher, load))


def summary(
    settings: dict[str, Any], rounds: Sequence[dict[str, float]], no_cap: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """Return medians of the rounds, and of ratios to the turn without a cap and the target."""
    point: dict[str, Any] = settings | {
        name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]
    }
    pairs = list(zip(rounds, no_cap, strict=True))
    point["long_ttft_to_no_cap"] = statistics.median(
        one["long_ttft_s"] / other["long_ttft_s"] for one, other in pairs
    )
    if "itl_target_s" in settings:
        target = settings["itl_target_s"]
        point["itl_p99_to_target"] = statistics.median(r["itl_p99_s"] / target for r in rounds)
    return point | {"rounds": list(rounds)}


def describe(point: dict[str, Any]) -> str:
    """Return a point as one line of text."""
    text = (
        f"{point['name']:>16}: ITL p50 {point['itl_p50_s'] * 1e3:.1f}, "
        f"p99 {point['itl_p99_s'] * 1e3:.1f} ms; TTFT of the long prompt "
        f"{point['long_ttft_s']:.2f} s, {point['long_ttft_to_no_cap']:.2f} x no cap"
    )
    if "itl_p99_to_target" in point:
        text += f"; ITL p99 {point['itl_p99_to_target']:.2f} x target"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=sorted(ALL_SHAPES))
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each stream's prompt")
    parser.add_argument("--long-prompt", type=int, default=4096)
    parser.add_argument("--chunks", default="16,32,64,128,256", help="max_prefill_tokens")
    parser.add_argument("--targets", default="1.5,2,3,4", help="itl_target, in decode-only steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    a = parser.parse_args()
    multiples = [float(text) for text in a.targets.split(",") if text]
    if multiples and not exists("itl_target"):
        sys.exit("a batcher has no option itl_target yet; leave it out with --targets ''")
    run, checkpoint = describe_run(), make_checkpoint(a.shape)
    common = {
        "dtype": a.dtype,
        "n_threads": a.threads,
        "n_parallel": a.streams + 1,
        "n_ctx": Mixed(a.streams, a.prompt, a.long_prompt, 0).positions,
        "max_draft_tokens": 0,  # random weights repeat themselves more than texts do
        "weights_cache": checkpoint.parent / "packed",
    } | parse(a.option)
    settings: dict[str, dict[str, Any]] = {"no cap": {}}
    settings |= {f"cap {n}": {"max_prefill_tokens": n} for n in numbers(a.chunks)}
    rounds: dict[str, list[dict[str, float]]] = {}
    with bar((len(settings) + len(multiples)) * a.rounds) as progress:

        def turn(name: str, number: int) -> None:
            progress.now(name)
            load = Mixed(a.streams, a.prompt, a.long_prompt, number)
            found = asyncio.run(measure(checkpoint, common | settings[name], load))
            rounds.setdefault(name, []).append(found)
            progress.advance()

        turn("no cap", 0)
        decode_only = rounds["no cap"][0]["decode_only_s"]
        progress.say(f"a step that only decodes takes {decode_only * 1e3:.1f} ms")
        for multiple in multiples:
            settings[f"target {multiple:g} x"] = {"itl_target": multiple * decode_only}
        for number in range(a.rounds):
            for name in settings:
                if len(rounds.get(name, ())) <= number:
                    turn(name, number)
        points = []
        for name, options in settings.items():
            facts: dict[str, Any] = {"name": name, "max_prefill_tokens": 0} | options
            if "itl_target" in facts:
                facts["itl_target_s"] = facts.pop("itl_target")
            points.append(summary(facts, rounds[name], rounds["no cap"]))
            progress.say(describe(points[-1]))
    subject = {"shape": a.shape, "dtype": a.dtype, "threads": a.threads}
    load = asdict(Mixed(a.streams, a.prompt, a.long_prompt, 0))
    result = {"run": run, **subject, "load": load, "decode_only_s": decode_only, "points": points}
    print(f"wrote {write_result(f'frontier-{a.shape}-{a.dtype}', result)}")
    draw_result("frontier", result)


if __name__ == "__main__":
    main()

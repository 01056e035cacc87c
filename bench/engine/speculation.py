"""Measure the gain of draft tokens: the same requests with and without them, in turns. As JSON.

    python -m bench.speculation > bench/results/speculation-tiny-bf16.json
    python -m bench.speculation --checkpoint bench/checkpoints/smollm2-135m

Requests of five kinds, in batches: stories (the demo prompts, where there is a chat template), the
greedy continuation of a repetitive text, a repeated token, dice (three random tokens, so that one
draft token in three is accepted) and noise (nothing repeats). The tokens of both runs must be
equal. First measures the cost of a row against an empty step, which determines how many draft
tokens pay off.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.machine import describe_run
from pybatcher.models import DEMO_PROMPTS
from pybatcher.params import SamplingParams
from pybatcher.params.config import EngineConfig, SchedulerConfig
from pybatcher.scheduling import Generated, Request, Scheduler, StepEntry, StepPlan
from pybatcher.serving.runtime import Runtime, open_checkpoint

Prompt = tuple[int, ...]
FEW = 3  # sides of the dice
DRAFTS = (0, 1, 3, 7)  # draft tokens per sequence for the measured cost of a row


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one kind; a batch repeats the prompts to get as many as it needs."""

    name: str
    prompts: Sequence[Prompt]
    params: SamplingParams

    end_token_ids: frozenset[int] = frozenset()

    def requests(self, count: int) -> list[Request]:
        return [
            Request(
                request_id=i,
                prompt=self.prompts[i % len(self.prompts)],
                params=self.params,
                seed=i,
                namespace=str(i),
                end_token_ids=self.end_token_ids,
            )
            for i in range(count)
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: seconds and tokens of its steps without prompt rows."""

    tokens: list[tuple[int, int]]  # (request, token), in the order of requests
    seconds: float
    n_decoded: int
    steps: int
    proposed: int
    accepted: int

    @property
    def speed(self) -> float:
        return self.n_decoded / self.seconds


def run(runtime: Runtime, requests: list[Request], max_draft_tokens: int) -> Outcome:
    """Serve the requests together, on one clock in this process."""
    config = SchedulerConfig(max_draft_tokens=max_draft_tokens, max_prefixes=0)
    scheduler = Scheduler(config, runtime.engine)
    for request in requests:
        scheduler.submit(request, 0.0)
    tokens: list[tuple[int, int]] = []
    seconds, n_decoded = 0.0, 0
    begin = time.perf_counter()
    while (plan := scheduler.plan(begin)) is not None:
        result = runtime.engine.step(plan)
        events = scheduler.apply(result, time.perf_counter())
        drawn = [(e.request_id, e.token.token_id) for e in events if isinstance(e, Generated)]
        tokens += drawn
        end = time.perf_counter()
        if not plan.prefill_rows:
            seconds += end - begin
            n_decoded += len(drawn)
        begin = end
    counts = scheduler.statistics()
    tokens.sort(key=lambda item: item[0])
    return Outcome(
        tokens, seconds, n_decoded, counts.steps, counts.proposed_tokens, counts.accepted_tokens
    )


def compare(
    runtime: Runtime, workload: Workload, size: int, max_draft_tokens: int, rounds: int
) -> dict[str, Any]:
    """Measure off, on, off, on, ...: the best of each, their ratio, the median neighbours' ratio.

    Disturbances only slow a run down: the best one was disturbed least.
    """
    requests = workload.requests(size)
    run(runtime, requests, 0)  # warms up
    pairs = []
    for _ in range(rounds):
        off = run(runtime, requests, 0)
        on = run(runtime, requests, max_draft_tokens)
        if on.tokens != off.tokens:
            raise SystemExit(f"{workload.name}, batch of {size}: the tokens differ")
        pairs.append((off, on))
    best_off, best_on = (max(run.speed for run in runs) for runs in zip(*pairs, strict=True))
    off, on = pairs[-1]
    return {
        "workload": workload.name,
        "batch": size,
        "off tok/s": round(best_off, 2),
        "on tok/s": round(best_on, 2),
        "ratio": round(best_on / best_off, 3),
        "median ratio": round(statistics.median(on.speed / off.speed for off, on in pairs), 3),
        "ratios": [round(on.speed / off.speed, 3) for off, on in pairs],
        "steps off": off.steps,
        "steps on": on.steps,
        "proposed": on.proposed,
        "accepted": on.accepted,
    }


def cost_of_rows(runtime: Runtime, sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    """Return milliseconds of steps by sequences and draft tokens each, and a fitted line.

    `rows of an empty step`: the line's intercept over its slope.
    """
    rng = np.random.default_rng(0)
    engine = runtime.engine
    seq_ids = [engine.seq_new() for _ in range(max(sizes))]
    cells = [(size, draft) for size in sizes for draft in DRAFTS]
    seconds: dict[tuple[int, int], list[float]] = {cell: [] for cell in cells}
    prompt = tuple(rng.integers(0, engine.vocab_size, 64).tolist())
    for seq_id in seq_ids:
        engine.step(StepPlan((StepEntry(seq_id, prompt, False),), 0, 0))
    for _ in range(rounds):
        for size, draft in cells:
            tokens = rng.integers(0, engine.vocab_size, (size, draft + 1)).tolist()
            entries = tuple(
                StepEntry(seq_id, tuple(own), True, draft)
                for seq_id, own in zip(seq_ids, tokens, strict=False)
            )
            begin = time.perf_counter()
            engine.step(StepPlan(entries, size, 0, size * draft))
            seconds[size, draft].append(time.perf_counter() - begin)
            for seq_id in seq_ids[:size]:
                engine.seq_remove(seq_id, 64)
    for seq_id in seq_ids:
        engine.seq_remove(seq_id)
    best = {cell: min(values) for cell, values in seconds.items()}
    rows = [size * (draft + 1) for size, draft in cells]
    per_row, empty = np.polyfit(rows, [best[cell] for cell in cells], 1)
    return {
        "ms": {f"{size} x {1 + draft}": round(t * 1e3, 3) for (size, draft), t in best.items()},
        "ms of a row": round(per_row * 1e3, 4),
        "ms of an empty step": round(empty * 1e3, 3),
        "rows of an empty step": round(empty / per_row, 1),
    }


def workloads(runtime: Runtime, max_tokens: int) -> list[Workload]:
    vocab = runtime.engine.vocab_size
    rng = np.random.default_rng(1)
    noise = tuple(rng.integers(0, min(vocab, 256), 48).tolist())
    few = dict.fromkeys(noise[:FEW], 100.0)
    circle = noise[:12] * 8

    def workload(name: str, prompt: Prompt, **sampling: Any) -> Workload:
        return Workload(name, [prompt], SamplingParams(max_tokens=max_tokens, **sampling))

    made = [
        workload("greedy", circle),
        workload("circle", circle, logit_bias={circle[0]: 100.0}),
        workload("dice", circle, logit_bias=few, temperature=100.0, top_k=FEW),
        workload("noise", noise, temperature=100.0),
    ]
    if runtime.chat_template.available:
        ends = frozenset(runtime.tokenizer.eos_token_ids)
        stories = Workload("stories", demo_prompts(runtime), SamplingParams(max_tokens=256), ends)
        made.insert(0, stories)
    return made


def demo_prompts(runtime: Runtime) -> list[Prompt]:
    encode, render = runtime.tokenizer.encode, runtime.chat_template.render
    return [
        tuple(
            encode(prompt)
            if isinstance(prompt, str)
            else encode(render(prompt), add_special_tokens=False)
        )
        for prompt in DEMO_PROMPTS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", type=Path, help="without it: the model that ships inside")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch-sizes", default="1,4,16")
    parser.add_argument("--max-draft-tokens", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workloads", default="", help="names, separated by commas; else all")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.batch_sizes.split(",")]
    run_of = describe_run()
    config = EngineConfig(
        dtype=arguments.dtype,
        n_threads=arguments.threads,
        n_parallel=max(sizes),
        n_ctx=512 * max(sizes),
    )
    runtime = open_checkpoint(arguments.checkpoint, None, config)
    cost = cost_of_rows(runtime, sizes, 3 * arguments.rounds)
    print(f"an empty step costs as much as {cost['rows of an empty step']} rows", file=sys.stderr)
    results = []
    chosen = set(filter(None, arguments.workloads.split(",")))
    for workload in workloads(runtime, arguments.max_tokens):
        if chosen and workload.name not in chosen:
            continue
        for size in sizes:
            found = compare(runtime, workload, size, arguments.max_draft_tokens, arguments.rounds)
            results.append(found)
            print(
                f"{workload.name:>8} B={size:<3} {found['off tok/s']:9.1f} {found['on tok/s']:9.1f}"
                f" tok/s  x {found['ratio']:.3f} ({found['median ratio']:.3f})"
                f"  {found['accepted']} of {found['proposed']}",
                file=sys.stderr,
            )
    print(
        json.dumps(
            {
                "run": run_of,
                "model": runtime.name,
                "engine": runtime.engine.description(),
                "max_draft_tokens": arguments.max_draft_tokens,
                "cost of rows": cost,
                "results": results,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()

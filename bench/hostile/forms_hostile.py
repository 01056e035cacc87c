"""Hostile schemas beside honest streams: the gaps between tokens, with and without them.

    .venv/bin/python -m bench.forms_hostile

Half of the streams have a schema. They run in turns, alone and while callers send one costly form
after another: regular expressions that count far or explode, a schema of 1 MB, endless recursion,
an enum of 70,000 values, an ambiguous grammar. Every hostile call has to end with an output or a
typed error. Results go to bench/results/forms-hostile-*.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections import Counter
from typing import Any

import numpy as np

from bench.common.machine import describe_run
from bench.common.results import write_result
from bench.engines.interface import random_tokens
from bench.structured.forms import OPEN, VOCAB, make_model
from pybatcher import Batcher, PybatcherError

_WIDE = {
    "type": "object",
    "properties": {f"a property with the number {i}": {"type": "integer"} for i in range(18_000)},
}
_DEEP: dict[str, Any] = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"next": {"$ref": "#/$defs/node"}, "also": {"$ref": "#/$defs/node"}},
            "additionalProperties": {"$ref": "#/$defs/node"},
        }
    },
    "$ref": "#/$defs/node",
}
_ENUM = {"enum": [f"value{i}" for i in range(70_000)]}
_ANY_OF = {"anyOf": [{"type": "object", "required": [f"k{i}"]} for i in range(60)]}
HOSTILE: dict[str, dict[str, Any]] = {
    "a counted regex": {"regex": "((a{1,60}){1,60}){1,60}b"},
    "a regex that counts far": {"regex": "a{1000000000}"},
    "an exploding regex": {"regex": "(a|aa|aaa)*(a|b)*[ab]{900}c"},
    "unions of wide classes": {"regex": "(\\w|\\d|[^a])*(.|\\s)*(x+x+)+y"},
    "a schema of 1 MB": {"json_schema": _WIDE},
    "recursion": {"json_schema": _DEEP},
    "an enum of 70,000": {"json_schema": _ENUM},
    "60 alternatives": {"json_schema": _ANY_OF},
    "an ambiguous grammar": {"grammar": 'start: e\ne: e e | "a" | "aa" | "a" e "a" | '},
    "choices": {"choices": [f"one of the choices, {i}" for i in range(10_000)]},
}


async def gaps(batcher: Batcher, a: argparse.Namespace, hostile: bool) -> dict[str, Any]:
    """Return the milliseconds between tokens of honest streams, and how hostile calls ended."""
    times: list[float] = []
    ends: Counter[str] = Counter()

    async def stream(i: int) -> None:
        form: dict[str, Any] = {"json_schema": OPEN} if i % 2 else {"ignore_eos": True}
        options = {"temperature": 1.0, "seed": i, "max_tokens": a.tokens}
        made = await batcher.generate(random_tokens(32, i), **options, **form)
        times.extend(made.timeline.itl)

    async def attack(i: int) -> None:
        names = list(HOSTILE)
        while True:
            name = names[i % len(names)]
            i += 1
            form = dict(HOSTILE[name])
            if "regex" in form:  # makes it differ from the compiled one
                form["regex"] += f"z{{{i % 7}}}"
            began = time.perf_counter()
            try:
                await batcher.generate(random_tokens(8, i), max_tokens=16, timeout=60, **form)
                ends[f"{name}: an output"] += 1
            except PybatcherError as error:
                ends[f"{name}: {type(error).__name__}"] += 1
            await asyncio.sleep(max(0.0, a.pause - (time.perf_counter() - began)))

    attacks = [asyncio.create_task(attack(i)) for i in range(0, 8, 4) if hostile]
    await asyncio.gather(*map(stream, range(a.streams)))
    for task in attacks:
        task.cancel()
    await asyncio.gather(*attacks, return_exceptions=True)
    ms = 1e3 * np.array(times)
    found: dict[str, Any] = {f"p{p}": float(np.percentile(ms, p)) for p in (50, 99)}
    found["max"] = float(ms.max())
    return found | ({"ends": dict(ends)} if hostile else {})


async def measure(a: argparse.Namespace) -> dict[str, Any]:
    model = make_model(a.shape) if a.shape else None
    options: dict[str, Any] = {"n_threads": a.threads, "n_parallel": a.streams + 4}
    if model is not None:
        options |= {"dtype": "int8", "n_ctx": (a.streams + 4) * (a.tokens + 64)}
    async with Batcher(model, **options) as batcher:
        await gaps(batcher, a, False)
        turns = [
            (await gaps(batcher, a, False), await gaps(batcher, a, True)) for _ in range(a.rounds)
        ]
        restarts = batcher.statistics().restarts
    ends: Counter[str] = Counter()
    for _, beside in turns:
        ends.update(beside.pop("ends"))
    return {
        "alone_ms": {key: statistics.median(one[key] for one, _ in turns) for key in turns[0][0]},
        "beside_ms": {key: statistics.median(one[key] for _, one in turns) for key in turns[0][1]},
        "p99_ratio": statistics.median(beside["p99"] / one["p99"] for one, beside in turns),
        "hostile_calls": dict(sorted(ends.items())),
        "engine_restarts": restarts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="smollm2-135m", help="'' for the shipped model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.3, help="least seconds between attacks")
    a = parser.parse_args()
    run = describe_run()
    found = asyncio.run(measure(a))
    print(json.dumps(found, indent=1))
    asked = {name: getattr(a, name) for name in ("threads", "streams", "tokens", "rounds", "pause")}
    name = a.shape or "shipped"
    result = {"run": run, "shape": name, "vocab_size": VOCAB, **asked, **found}
    print(f"wrote {write_result(f'forms-hostile-{name}', result)}")


if __name__ == "__main__":
    main()

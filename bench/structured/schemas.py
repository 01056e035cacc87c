"""Measure outputs under many schemas, as those of JSONSchemaBench, and whether all are valid.

    .venv/bin/python -m bench.schemas --schemas DIR

DIR: JSON files, at any depth: a schema each, or an object with a "schema" and "tests", a list of
{"data": ..., "valid": ...}. Of those that are not refused some are drawn at random and go through
the sampler of the shipped model, with several seeds, at a high temperature. Outputs are judged by
`jsonschema`. Tests that are not valid must be refused by the masks. Results go to
bench/results/schemas-NAME.json; the exit status is 1 where an output or a test is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.machine import describe_run
from bench.common.results import write_result
from bench.structured.schema_outputs import Masks, Output, SchemaOutputs, judge, reason
from pybatcher import Batcher


@dataclass
class Sample:
    """Schemas drawn from a folder, by file, and what was refused on the way."""

    schemas: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    n_tests: Counter[str] = field(default_factory=Counter)  # by their outcome
    let_through: list[str] = field(default_factory=list)


def sample(folder: Path, count: int, seed: int, masks: Masks) -> Sample:
    """Pick schemas from the files of a folder until `count` of them are accepted."""
    files = sorted(folder.rglob("*.json"))
    random.Random(seed).shuffle(files)
    drawn = Sample()
    for file in files:
        if len(drawn.schemas) == count:
            break
        given = json.loads(file.read_text(encoding="utf-8"))
        has_tests = isinstance(given, dict) and {"schema", "tests"} <= given.keys()
        schema, tests = (given["schema"], given["tests"]) if has_tests else (given, [])
        if said := masks.refusal(schema):
            drawn.refused[reason(said)] += 1
            continue
        name = file.relative_to(folder).as_posix()
        drawn.schemas.append(schema)
        drawn.names.append(name)
        for test in tests:
            accepted = masks.accepts(schema, test["data"])
            known = "valid" if test["valid"] else "invalid"
            drawn.n_tests[f"{known}, {'accepted' if accepted else 'refused'}"] += 1
            if accepted and not test["valid"]:
                drawn.let_through.append(f"{name}: {json.dumps(test['data'])}")
    return drawn


def judged(one: Output, schema: Any, masks: Masks, times: list[float]) -> str:
    """Return "cut", or the result of `judge` for an output. Adds the seconds of its masks."""
    problem, took = masks.follow(schema, one.tokens)
    times += took
    if problem:
        return f"invalid: {problem}"
    return judge(schema, one.text) if one.finished else "cut"


async def measure(a: argparse.Namespace) -> dict[str, Any]:
    """Return the counts and figures of one run."""
    masks = Masks()
    drawn = sample(a.schemas, a.count, a.draw, masks)
    made = SchemaOutputs()
    options: dict[str, Any] = {"temperature": a.temperature, "max_tokens": a.tokens}
    if a.bias:
        options["logit_bias"] = dict.fromkeys(masks.closing_tokens(), a.bias)
    n_ctx = a.streams * (a.tokens + 64)
    async with Batcher(n_threads=a.threads, n_parallel=a.streams, n_ctx=n_ctx) as batcher:
        began = time.perf_counter()
        await made.draw(batcher, drawn.schemas, range(a.seeds), at_once=a.streams, **options)
        seconds = time.perf_counter() - began
    verdicts: Counter[str] = Counter()
    times: list[float] = []
    wrong = list(drawn.let_through)
    for one in made.outputs:
        verdict = judged(one, drawn.schemas[one.schema], masks, times)
        verdicts[verdict.split(":")[0]] += 1
        if verdict.startswith("invalid"):
            wrong.append(f"{drawn.names[one.schema]}, seed {one.seed}: {verdict}: {one.text}")
    n_tokens = sum(len(one.tokens) for one in made.outputs)
    p50, p99 = np.percentile(times, [50, 99]) if times else (0.0, 0.0)
    return {
        "schemas_accepted": len(drawn.schemas),
        "schemas_refused": dict(drawn.refused.most_common()),
        "requests_failed": dict(Counter(reason(one.said) for one in made.refused).most_common()),
        "tests": dict(drawn.n_tests),
        "outputs": len(made.outputs),
        "outputs_finished": sum(one.finished for one in made.outputs),
        "verdicts": dict(verdicts.most_common()),
        "wrong": wrong,
        "tokens": n_tokens,
        "tokens_per_s": n_tokens / seconds,
        "mask_us_p50": 1e6 * float(p50),
        "mask_us_p99": 1e6 * float(p99),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--schemas", type=Path, required=True, help="a folder of JSON files")
    parser.add_argument("--name", default="bench", help="of the result")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--draw", type=int, default=0, help="the seed of the draw")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=1.5)
    parser.add_argument("--bias", type=float, default=2.0, help="of closing tokens: more finish")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, default=32)
    a = parser.parse_args()
    if not any(a.schemas.rglob("*.json")):
        parser.error(f"{a.schemas} has no JSON files")
    run = describe_run()
    run["command"] = run["command"].replace(str(a.schemas), a.schemas.name)
    found = asyncio.run(measure(a))
    print(json.dumps(found, indent=1))
    asked = ("count", "draw", "seeds", "temperature", "bias", "tokens", "threads", "streams")
    result = {"run": run, **{name: getattr(a, name) for name in asked}, **found}
    print(f"wrote {write_result(f'schemas-{a.name}', result)}")
    if found["wrong"]:
        sys.exit(1)


if __name__ == "__main__":
    main()

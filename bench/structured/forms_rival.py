"""Outputs under a JSON schema, beside llama.cpp's grammar sampler on the same schema and model.

    make rival-llamacpp
    .venv/bin/python -m bench.forms_rival

The model is that of `bench.forms`. In turns, at temperature 1: one output and several at a time
under a schema of lists of names (`bench.forms.OPEN`), in tokens a second; and one output whose
schema fixes its keys (`FIXED`), in seconds. llama.cpp writes forced text in whatever tokens the
model draws, pybatcher in the tokenizer's own: so bytes a second are told too.
Results go to bench/results/forms-rival-*.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.common.machine import describe_run
from bench.common.results import write_result
from bench.engines.engine_list import LLAMA_CPP, ROOT
from bench.engines.interface import Settings, random_tokens
from bench.structured.forms import FIXED, OPEN, VOCAB, make_model
from pybatcher import Batcher


class Rival:
    """llama.cpp in a process of its own."""

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        self._process = subprocess.Popen(
            [
                *(str(LLAMA_CPP.python), "-m", "bench.engines.llama_cpp_forms"),
                *(str(checkpoint), json.dumps(asdict(settings))),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.facts = self._answer()

    def outputs(self, schema: dict[str, Any], seeds: list[int], n_new: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        asked = {"schema": schema, "seeds": seeds, "n_new": n_new}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"llama.cpp ended with {self._process.wait()}")
        return json.loads(line)


async def own_outputs(
    batcher: Batcher, schema: dict[str, Any], seeds: list[int], n_new: int
) -> dict[str, Any]:
    """Return what `Rival.outputs` returns."""
    begin = time.perf_counter()
    options: dict[str, Any] = {"json_schema": schema, "max_tokens": n_new, "temperature": 1.0}
    made = await asyncio.gather(
        *(batcher.generate(random_tokens(32, seed), seed=seed, **options) for seed in seeds)
    )
    return {
        "seconds": time.perf_counter() - begin,
        "tokens": [len(one.token_ids) for one in made],
        "bytes": [len(one.text.encode()) for one in made],
    }


def rates(outputs: dict[str, Any]) -> tuple[float, float, float]:
    """Return tokens a second, bytes a second, and seconds."""
    seconds = outputs["seconds"]
    return sum(outputs["tokens"]) / seconds, sum(outputs["bytes"]) / seconds, seconds


async def measure(model: Path, a: argparse.Namespace) -> dict[str, Any]:
    n_ctx = a.streams * (a.tokens + 512)
    settings = Settings(
        dtype=a.dtype, n_threads=a.threads, n_ctx=n_ctx, n_batch=2048, n_parallel=a.streams
    )
    cases = {
        "one": (OPEN, 1, a.tokens),
        f"{a.streams} at a time": (OPEN, a.streams, a.tokens),
        "fixed keys": (FIXED, 1, 2000),
    }
    found: dict[str, Any] = {}
    rival = Rival(model, settings)
    options = {"dtype": a.dtype, "n_threads": a.threads, "n_ctx": n_ctx, "n_parallel": a.streams}
    try:
        async with Batcher(model, **options) as batcher:
            for name, (schema, n, n_new) in cases.items():
                turns = []
                for i in range(a.rounds + 1):
                    seeds = [100 * i + j for j in range(n)]
                    theirs = rates(rival.outputs(schema, seeds, n_new))
                    ours = rates(await own_outputs(batcher, schema, seeds, n_new))
                    turns.append((ours, theirs))
                    told = f"pybatcher {ours[0]:.1f} tokens/s, llama.cpp {theirs[0]:.1f}"
                    print(f"{name}, round {i}: {told}", file=sys.stderr, flush=True)
                turns = turns[1:]  # the first turn compiles
                found[name] = {
                    what: {
                        "pybatcher": statistics.median(ours[k] for ours, _ in turns),
                        "llama.cpp": statistics.median(theirs[k] for _, theirs in turns),
                        "ratio": statistics.median(ours[k] / theirs[k] for ours, theirs in turns),
                    }
                    for k, what in enumerate(("tokens_per_s", "bytes_per_s", "seconds"))
                }
    finally:
        rival.close()
    return {"rival": rival.facts, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    if not LLAMA_CPP.is_installed:
        raise SystemExit("llama.cpp is not installed: make rival-llamacpp")
    run = describe_run()
    found = asyncio.run(measure(make_model(a.shape), a))
    print(json.dumps(found, indent=1))
    asked = {name: getattr(a, name) for name in ("dtype", "threads", "streams", "tokens", "rounds")}
    result = {"run": run, "shape": a.shape, "vocab_size": VOCAB, **asked, **found}
    print(f"wrote {write_result(f'forms-rival-{a.shape}', result)}")


if __name__ == "__main__":
    main()

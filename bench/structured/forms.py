"""Measure the cost of structured output: throughput, speed of fixed keys, time to first token.

    .venv/bin/python -m bench.forms

The model has random weights in the shape of smollm2-135m, with a vocabulary of 128,256 tokens. The
measurements take turns: streams, half of them under a JSON schema, and the same without; one output
whose schema fixes its keys, and one of as many tokens without; first tokens under a known schema,
and without. Results go to bench/results/forms-*.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.common.machine import describe_run
from bench.common.results import write_result
from bench.convert.make_checkpoint import CHECKPOINTS, END_TOKEN, write_checkpoint
from bench.convert.shapes import config_of
from bench.engines.interface import random_tokens
from pybatcher import Batcher

VOCAB = 128_256
# The schema has many items, so that outputs of random weights have as many tokens as requested.
OPEN = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 20}},
        "required": ["name"],
        "additionalProperties": False,
    },
    "minItems": 200,
}
FIXED = {
    "type": "object",
    "properties": {f"the value of part {i}": {"type": "integer", "maximum": 9} for i in range(12)},
    "required": [f"the value of part {i}" for i in range(12)],
    "additionalProperties": False,
}


def make_model(shape: str) -> Path:
    """Return the directory of the shape with a large vocabulary; make it if it does not exist."""
    directory = CHECKPOINTS / f"{shape}-128k"
    if not (directory / "config.json").exists():
        ids = {"bos_token_id": VOCAB - 1, "eos_token_id": VOCAB - 1}
        write_checkpoint(directory, config_of(shape) | ids | {"vocab_size": VOCAB})
        write_large_tokenizer(directory)
    return directory


def write_large_tokenizer(directory: Path, n_vocab: int = VOCAB) -> None:
    """Write a tokenizer of bytes and random words, some of them with a leading space.

    n_vocab: the number of tokens, of which the last one ends a text.
    """
    rng = np.random.default_rng(0)
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    letters = "etaoinshrdlucmfwypvbgkjqxzETAOINSHRDLU0123456789"
    while len(vocabulary) < n_vocab - 1:
        blank, length, *picks = rng.integers(0, 7 * 2 * len(letters), 10).tolist()
        word = "".join(letters[pick % len(letters)] for pick in picks[: 2 + length % 7])
        vocabulary.setdefault("Ġ" * (blank % 2) + word, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_TOKEN])
    tokenizer.save(str(directory / "tokenizer.json"))


async def throughput(batcher: Batcher, n_streams: int, n_forms: int, n_new: int) -> float:
    """Return the tokens a second of streams, of which `n_forms` have a schema."""

    async def caller(i: int) -> int:
        form = {"json_schema": OPEN} if i % 2 == 1 and i // 2 < n_forms else {"ignore_eos": True}
        options: dict[str, Any] = {"temperature": 1.0, "seed": i, "max_tokens": n_new, **form}
        n_tokens = 0
        async for piece in batcher.stream(random_tokens(32, i), **options):
            n_tokens += len(piece.token_ids)
        return n_tokens

    begin = time.perf_counter()
    counts = await asyncio.gather(*map(caller, range(n_streams)))
    return sum(counts) / (time.perf_counter() - begin)


async def fixed_keys(batcher: Batcher, seed: int) -> tuple[float, float]:
    """Return the tokens a second of a schema that fixes its keys, and of as many tokens without.

    Both are sampled at temperature 1, because greedy text of random weights repeats itself and is
    drafted.
    """
    prompt = random_tokens(32, seed)
    drawn: dict[str, Any] = {"temperature": 1.0, "seed": seed}
    begin = time.perf_counter()
    made = await batcher.generate(prompt, json_schema=FIXED, max_tokens=2000, **drawn)
    middle = time.perf_counter()
    n_tokens = len(made.token_ids)
    await batcher.generate(prompt, max_tokens=n_tokens, ignore_eos=True, **drawn)
    return n_tokens / (middle - begin), n_tokens / (time.perf_counter() - middle)


async def fixed_keys_of_the_shipped_model(threads: int, rounds: int) -> float:
    """Return the ratio of `fixed_keys` for a trained model, which writes text in usual tokens."""
    async with Batcher(n_threads=threads) as batcher:
        keys = [await fixed_keys(batcher, seed) for seed in range(rounds)]
    return statistics.median(form / plain for form, plain in keys)


async def first_token(batcher: Batcher, seed: int) -> tuple[float, float]:
    """Return the milliseconds to the first token under a known schema, and without."""
    times = []
    for form in ({"json_schema": OPEN}, {}):
        made = await batcher.generate(random_tokens(32, seed), max_tokens=1, **form)
        times.append(1e3 * made.timeline.ttft)
    return times[0], times[1]


async def measure(model: Path, a: argparse.Namespace) -> dict[str, Any]:
    options = {"dtype": a.dtype, "n_threads": a.threads, "n_ctx": a.streams * (a.tokens + 64)}
    async with Batcher(model, n_parallel=a.streams, **options) as batcher:
        await throughput(batcher, a.streams, a.streams // 2, 4)
        turns = []
        for i in range(a.rounds):
            order = (a.streams // 2, 0) if i % 2 else (0, a.streams // 2)
            turns.append({n: await throughput(batcher, a.streams, n, a.tokens) for n in order})
        keys = [await fixed_keys(batcher, seed) for seed in range(a.rounds)]
        firsts = [await first_token(batcher, seed) for seed in range(4 * a.rounds)]
    return {
        "plain_tokens_per_s": statistics.median(turn[0] for turn in turns),
        "throughput_ratio": statistics.median(turn[a.streams // 2] / turn[0] for turn in turns),
        "fixed_keys_ratio": statistics.median(form / plain for form, plain in keys),
        "fixed_keys_ratio_shipped": await fixed_keys_of_the_shipped_model(a.threads, a.rounds),
        "first_token_later_ms": statistics.median(form - plain for form, plain in firsts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    a = parser.parse_args()
    run = describe_run()
    found = asyncio.run(measure(make_model(a.shape), a))
    print(json.dumps(found, indent=1))
    asked = {name: getattr(a, name) for name in ("dtype", "threads", "streams", "tokens", "rounds")}
    result = {"run": run, "shape": a.shape, "vocab_size": VOCAB, **asked, **found}
    path = write_result(f"forms-{a.shape}", result)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()

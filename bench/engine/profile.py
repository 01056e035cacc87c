"""Measure where the time of a step goes: products, attention, the rest.

    .venv/bin/python -m bench.profile llama-3.2-1b --dtype int8 --sequences 32 --context 4096

Runs bench/native/profile.cc, whose sequences have a KV context of that length that was never
computed. The rest (norms, rope, activation, embedding, and what lies between) is the total without
products and attention. Results go to bench/results/profile-*.json.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import Any

from bench.common.machine import describe_run
from bench.common.progress import bar
from bench.common.results import write_result
from bench.convert.shapes import SHAPES
from bench.engine import native_programs

FIELDS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim",
)  # fmt: skip
NAMES = {
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
}
PRODUCTS = ("products", "head")


def split(ms: dict[str, float]) -> dict[str, float]:
    """Return the shares of products, attention and the rest in the total."""
    products = sum(ms[name] for name in PRODUCTS) / ms["total"]
    attention = ms["attention"] / ms["total"]
    return {"products": products, "attention": attention, "other": 1.0 - products - attention}


def profile(shape: str, **options: Any) -> dict[str, Any]:
    """Run the program once; return its result.

    options: dtype, kv_dtype, threads, target, sequences, context, rows, passes.
    """
    sizes = {NAMES.get(field, field): SHAPES[shape][field] for field in FIELDS}
    arguments = [f"{name}={value}" for name, value in (sizes | options).items()]
    (result,) = native_programs.run("bench_profile", *arguments)
    return options | result | {"share": split(result["ms"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("--dtype", default="int8", help="one or several, as all that follow")
    parser.add_argument("--kv-dtype", default="bf16")
    parser.add_argument("--sequences", default="1,32")
    parser.add_argument("--context", default="128,1024,4096")
    parser.add_argument("--rows", type=int, default=1, help="new tokens of each sequence")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target", default="", help="CPU target; default: the fastest")
    parser.add_argument("--passes", type=int, default=7)
    a = parser.parse_args()
    run = describe_run()
    grid = list(
        itertools.product(*(x.split(",") for x in (a.dtype, a.kv_dtype, a.sequences, a.context)))
    )
    results = []
    with bar(len(grid)) as progress:
        for dtype, kv_dtype, sequences, context in grid:
            result = profile(
                a.shape,
                dtype=dtype,
                kv_dtype=kv_dtype,
                sequences=int(sequences),
                context=int(context),
                rows=a.rows,
                threads=a.threads,
                target=a.target,
                passes=a.passes,
            )
            results.append(result)
            shares = "  ".join(f"{name} {share:5.1%}" for name, share in result["share"].items())
            progress.say(
                f"{dtype:>5}, KV {kv_dtype:>4}: {sequences:>3} sequences at {context:>5}, "
                f"{a.rows} rows each: {result['ms']['total']:9.2f} ms  {shares}"
            )
            progress.advance()
    path = write_result(f"profile-{a.shape}", {"run": run, "shape": a.shape, "profiles": results})
    print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()

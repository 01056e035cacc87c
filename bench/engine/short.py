"""The short form of all benchmarks, `make bench`: prints tables within minutes.

pybatcher's speed on this machine, beside the machine's limits and the other engines that are
installed (`make rivals`) and whose models are converted. Measurements for which the time does not
suffice are left out, and named. The README's figures come from the long form: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.common.machine import describe_run
from bench.common.progress import Bar, bar
from bench.common.results import write_result
from bench.convert.make_checkpoint import make_checkpoint
from bench.convert.shapes import DTYPES
from bench.convert.weights import n_weights
from bench.engine import native_programs
from bench.engine.compare import compare
from bench.engine.kernels import measure as measure_kernels
from bench.engine.kernels import n_lines, table
from bench.engine.limits import peak_for
from bench.engine.measure import Plan
from bench.engines.engine_list import MeasuredEngine, choose

PLAN = Plan(prefill=(512,), prompt=32, steps=6, batch_sizes=(1, 8, 32), rounds=2)
EXPLANATION = """
prefill: one prompt; decode: steps that give each of B sequences a token. Figures are tokens a
second; "x NAME" is our speed over theirs within a round. Reading all weights bounds decode B=1, the
named instruction's peak bounds prefill."""
KERNEL_ROWS = "1,32,512"
KERNEL_MIB = 128


def compare_shapes(
    shapes: Sequence[str],
    engines: Sequence[MeasuredEngine],
    n_threads: int,
    end: float,
    progress: Bar,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the results, and a line for each subject that was left out.

    A subject is expected to take as long as the slowest before it.
    """
    results, left_out, slowest = [], [], 0.0
    for shape in shapes:
        checkpoint = make_checkpoint(shape)
        for dtype in DTYPES:
            begin = time.monotonic()
            if begin + slowest > end:
                left_out.append(f"{shape} {dtype}: no time left")
                continue
            ready = [e for e in engines if e.has_model(checkpoint, dtype)]
            left_out += [
                f"{e.name} on {shape} {dtype}: not converted; `{e.python} -m bench.{e.converter} "
                f"{checkpoint} {dtype}` does it, once"
                for e in engines
                if e not in ready
            ]
            results.append(compare(shape, dtype, PLAN, n_threads, ready, progress))
            slowest = max(slowest, time.monotonic() - begin)
    return results, left_out


def speeds_table(result: dict[str, Any]) -> Table:
    """Return the table of one shape and dtype: tokens a second, ratios, share of the limits."""
    names = list(result["contestants"])
    shown = Table(
        title=f"{result['shape']} {result['dtype']}: tokens a second", title_justify="left"
    )
    shown.add_column("")
    for name in names:
        shown.add_column(name, justify="right")
    for name in names[1:]:
        shown.add_column(f"x {name}", justify="right")
    shown.add_column("of the limit", justify="right")
    for row in result["tok/s"]:
        speeds = [f"{row['median'][name]:.1f}" for name in names]
        ratios = [f"{row['ratio'][name]:.2f}" for name in names[1:]]
        shown.add_row(row["measure"], *speeds, *ratios, share_of_limit(result, row))
    return shown


def share_of_limit(result: dict[str, Any], row: dict[str, Any]) -> str:
    """Return the share of the read bandwidth (one sequence) or multiplying peak (prefill)."""
    facts, limits = result["contestants"]["pybatcher"], result["limits"]
    speed = row["median"]["pybatcher"]
    if row["measure"] == "decode B=1":
        return f"{speed * int(facts['weight_bytes']) / 1e9 / limits['read_gb_s']:.0%} of reading"
    if row["measure"].startswith("prefill"):
        name, peak = peak_for(facts["cpu_target"], result["dtype"], limits["peak_gop_s"])
        return f"{speed * 2 * n_weights(result['shape']) / 1e9 / peak:.0%} of {name}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default="llama-3.2-1b,smollm2-135m")
    parser.add_argument("--engines", default="", help="names; default: all installed")
    parser.add_argument("--threads", type=int, default=0, help="0: the cores there are")
    parser.add_argument("--minutes", type=float, default=13.0, help="when to begin nothing new")
    a = parser.parse_args()
    end = time.monotonic() + 60 * a.minutes
    # Tables have their full width in a file or a pipe.
    run, console = describe_run(), Console(width=None if sys.stdout.isatty() else 110)
    n_threads = a.threads or int(run["cores"])
    engines, shapes = choose(a.engines), a.shapes.split(",")
    dtypes = ",".join(DTYPES)
    n_measured = sum(engine.takes(dtype) for engine in engines for dtype in DTYPES)
    turns = len(shapes) * n_measured * PLAN.n_turns
    with bar(n_lines(KERNEL_ROWS, dtypes) + turns) as progress:
        progress.now("building the native programs")
        native_programs.build()
        kernels = measure_kernels(n_threads, "", dtypes, KERNEL_ROWS, KERNEL_MIB, progress)
        results, left_out = compare_shapes(shapes, engines, n_threads, end, progress)
    console.print(f"\n{run['cpu']}, {n_threads} threads, {run['date']}\n")
    console.print("Matrix products of the 1B shape against this machine's limits", style="italic")
    for line in table(kernels):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(EXPLANATION, style="italic")
    for result in results:
        console.print()
        console.print(speeds_table(result))
    for line in left_out:
        console.print(f"left out: {line}", highlight=False, soft_wrap=True)
    path = write_result("short", {"run": run, "kernels": kernels, "compare": results})
    console.print(f"wrote {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()

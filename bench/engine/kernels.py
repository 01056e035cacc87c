"""Measure the CPU's matrix products against the machine's limits, in one run.

    .venv/bin/python -m bench.kernels

Runs bench/native/kernels.cc for each number of threads: GB/s and GOP/s of every product of the 1B
shape, beside the read bandwidth and the peak of the instruction that does the work. Results land in
bench/results/kernels-TARGET.json.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bench.common.machine import describe_run
from bench.common.progress import Bar, bar
from bench.common.results import write_result
from bench.engine import native_programs
from bench.engine.limits import peak_for

PRODUCTS = 4  # the number of products in bench/native/kernels.cc
HEAD_ROWS = 32  # the most rows that it computes of the head


def n_lines(rows: str, dtypes: str) -> int:
    """Return the number of products that a run measures."""
    counts = [int(count) for count in rows.split(",")]
    of_head = [count for count in counts if count <= HEAD_ROWS]
    return len(dtypes.split(",")) * ((PRODUCTS - 1) * len(counts) + len(of_head))


def measure(
    n_threads: int, target: str, dtypes: str, rows: str, mebibytes: int, progress: Bar
) -> dict[str, Any]:
    """Run the program once, and return the machine's limits and all products."""
    lines = native_programs.run(
        "bench_kernels",
        *("--threads", str(n_threads), "--target", target, "--dtypes", dtypes),
        *("--rows", rows, "--mib", str(mebibytes)),
    )
    machine = next(lines)
    products = []
    for line in lines:
        name, peak = peak_for(machine["target"], line["dtype"], machine["peak_gop_s"])
        line |= {"peak": name, "of_peak": line["gop_s"] / peak}
        products.append(line)
        progress.now(f"{n_threads} threads, {line['dtype']}, {line['product']}")
        progress.advance()
    return machine | {"products": products}


def table(result: dict[str, Any]) -> list[str]:
    """Return a text table: one line per dtype and row count, over all products weighted by time."""
    peaks = ", ".join(f"{name} {gop_s:,.0f}" for name, gop_s in result["peak_gop_s"].items())
    lines = [f"{result['target']}, {result['threads']} threads; peaks in GOP/s: {peaks}"]
    keys = dict.fromkeys((p["dtype"], p["rows"]) for p in result["products"])
    for dtype, rows in keys:
        group = [p for p in result["products"] if (p["dtype"], p["rows"]) == (dtype, rows)]
        ms = sum(p["ms"] for p in group)
        gb_s = sum(p["gb_s"] * p["ms"] for p in group) / ms
        gop_s = sum(p["gop_s"] * p["ms"] for p in group) / ms
        of_read = sum(p["of_read"] * p["ms"] for p in group) / ms
        of_peak = sum(p["of_peak"] * p["ms"] for p in group) / ms
        lines.append(
            f"{dtype:>5} {rows:4} rows {gb_s:7.1f} GB/s {of_read:6.1%} of reading "
            f"{gop_s:8.0f} GOP/s {of_peak:6.1%} of {group[0]['peak']}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--target", default="", help="CPU target; default: the fastest")
    parser.add_argument("--dtypes", default="bf16,int8,int4")
    parser.add_argument("--rows", default="1,4,8,16,32,128,512")
    parser.add_argument("--mib", type=int, default=768, help="weights a product passes over")
    a = parser.parse_args()
    run = describe_run()
    threads = [int(n) for n in a.threads.split(",")]
    with bar(len(threads) * n_lines(a.rows, a.dtypes)) as progress:
        runs = [measure(n, a.target, a.dtypes, a.rows, a.mib, progress) for n in threads]
    for result in runs:
        print("\n".join(table(result)))
    path = write_result(f"kernels-{runs[0]['target']}", {"run": run, "runs": runs})
    print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()

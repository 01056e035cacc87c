"""Plots (SVG) of results. The same results give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "pybatcher"

from matplotlib import pyplot as plt  # noqa: E402

__all__ = ["plt", "roofline", "save", "throughput"]

COLOURS = {"pybatcher": "#c2410c", "llama.cpp": "#0f766e", "openvino": "#4338ca"}
DTYPE_COLOURS = {"f32": "#525252", "bf16": "#4338ca", "int8": "#0f766e", "int4": "#c2410c"}


def save(figure: Any, path: Path) -> None:
    """Save the figure as SVG without a date, and close it."""
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def throughput(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw decode tokens a second by number of sequences: a panel per dtype, a line per engine."""
    figure, axes = plt.subplots(
        1, len(results), figsize=(4 * len(results), 3.6), sharey=True, squeeze=False
    )
    for axis, result in zip(axes[0], results, strict=True):
        rows = [row for row in result["tok/s"] if row["measure"].startswith("decode B=")]
        sizes = [int(row["measure"].partition("=")[2]) for row in rows]
        for name, facts in result["contestants"].items():
            speeds = [row["median"][name] for row in rows]
            axis.plot(sizes, speeds, "o-", color=COLOURS.get(name), label=facts["name"])
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.set_title(f"{result['shape']} {result['dtype']}", fontsize=10)
        axis.set_xlabel("sequences in a step")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("tokens a second")
    max(axes[0], key=lambda axis: len(axis.lines)).legend(frameon=False)
    save(figure, path)


def roofline(run: dict[str, Any], path: Path) -> None:
    """Draw GOP/s of every product over operations per byte of weights, below the limits."""
    figure, axis = plt.subplots(figsize=(6.4, 4.4))
    products = run["products"]
    intensity = [p["gop_s"] / p["gb_s"] for p in products]
    # Read bandwidth while the product ran: the product's rate over its share.
    reads = sorted(p["gb_s"] / p["of_read"] for p in products)
    bandwidth = reads[len(reads) // 2]
    span = [min(intensity) * 0.7, max(intensity) * 1.5]
    for name in dict.fromkeys(p["peak"] for p in products):
        peak = run["peak_gop_s"][name]
        corner = peak / bandwidth
        axis.plot([span[0], corner, span[1]], [span[0] * bandwidth, peak, peak], "k-", lw=0.8)
        axis.annotate(name, (span[1], peak), ha="right", va="bottom", fontsize=8)
    for dtype in dict.fromkeys(p["dtype"] for p in products):
        of_dtype = [p for p in products if p["dtype"] == dtype]
        axis.plot(
            [p["gop_s"] / p["gb_s"] for p in of_dtype],
            [p["gop_s"] for p in of_dtype],
            "o",
            ms=4,
            color=DTYPE_COLOURS.get(dtype),
            label=dtype,
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(*span)
    axis.set_xlabel("operations a byte of weights")
    axis.set_ylabel("GOP/s")
    threads = run["threads"]
    axis.set_title(f"{run['target']}, {threads} threads, {bandwidth:.0f} GB/s read", fontsize=10)
    axis.grid(alpha=0.3, which="both")
    axis.legend(frameon=False)
    save(figure, path)

"""Plots (SVG) of loads, policies and soaks. The same results give the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report import sidecar_plots
from bench.report.plots import plt, save

__all__ = ["PICTURES", "frontier", "loads", "policies", "soak"]


def loads(result: dict[str, Any], path: Path) -> None:
    """Draw TTFT, gaps and goodput by the arrival rate, one line per policy."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
    panels = (
        ("TTFT p99, s", lambda row: row["ttft_s"]["p99"]),
        ("ITL p99, ms", lambda row: row["itl_s"]["p99"] * 1e3),
        ("goodput, requests a second", lambda row: row["goodput_per_s"]),
    )
    for policy in dict.fromkeys(row["policy"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["policy"] == policy]
        for axis, (title, figure_of) in zip(axes, panels, strict=True):
            axis.plot([r["rate"] for r in rows], list(map(figure_of, rows)), "o-", label=policy)
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("requests a second that come")
            axis.grid(alpha=0.3)
    axes[2].axline((0, 0), slope=1, color="k", lw=0.6)
    for axis in axes:
        axis.set_ylim(bottom=0)
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{result['load']}: {result['shape']} {result['dtype']}", fontsize=10)
    save(figure, path)


def policies(result: dict[str, Any], path: Path) -> None:
    """Draw bars, one colour per policy: waits, gaps, goodput, recomputed tokens."""
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.6))
    rows = result["rows"]
    width = 0.8 / len(rows)
    percentiles = ("p50", "p95", "p99")
    for i, row in enumerate(rows):
        at = [place + (i - (len(rows) - 1) / 2) * width for place in range(len(percentiles))]
        ttft = [row["ttft_s"][p] for p in percentiles]
        gaps = [row["itl_s"][p] * 1e3 for p in percentiles]
        axes[0].bar(at, ttft, width, label=row["policy"])
        axes[1].bar(at, gaps, width)
        axes[2].bar([at[1]], [row["goodput_per_s"]], width)
        axes[3].bar([at[1]], [row["recomputed_tokens"] / max(row["computed_tokens"], 1)], width)
    titles = ("TTFT, s", "ITL, ms", "goodput, requests a second", "share of rows recomputed")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3, axis="y")
    for axis in axes[:2]:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.tick_params(which="minor", labelsize=7)
        axis.set_xticks(range(len(percentiles)), percentiles)
    for axis in axes[2:]:
        axis.set_xticks([])
        axis.set_ylim(bottom=0)
    axes[0].legend(frameon=False, fontsize=8)
    costs = result["costs"]
    requests = rows[0]["requests"]
    title = (
        f"{result['load']}: {requests:,} requests, steps as of {costs['shape']} {costs['dtype']}"
    )
    figure.suptitle(title, fontsize=10)
    save(figure, path)


def frontier(result: dict[str, Any], path: Path) -> None:
    """Draw ITL p99 over the long prompt's TTFT: a line over chunk sizes, marks for targets."""
    figure, axis = plt.subplots(figsize=(6.4, 4.4))
    points = result["points"]
    caps = [p for p in points if "itl_target_s" not in p]
    caps.sort(key=lambda p: p["max_prefill_tokens"] or float("inf"))
    at = [(p["long_ttft_s"], p["itl_p99_s"] * 1e3) for p in caps]
    axis.plot([x for x, _ in at], [y for _, y in at], "o-", color="#0f766e", label="chunk size")
    for point, place in zip(caps, at, strict=True):
        axis.annotate(point["name"], place, xytext=(4, 4), textcoords="offset points", fontsize=8)
    label = "itl_target, and the target"
    for point in points:
        if "itl_target_s" in point:
            x, y = point["long_ttft_s"], point["itl_p99_s"] * 1e3
            target = point["itl_target_s"] * 1e3
            axis.plot([x, x], [y, target], "-", color="#c2410c", lw=0.8)
            axis.plot([x], [target], "_", color="#c2410c", ms=10)
            axis.plot([x], [y], "D", color="#c2410c", label=label)
            axis.annotate(
                point["name"], (x, y), xytext=(4, -10), textcoords="offset points", fontsize=8
            )
            label = "_"  # the legend has it once
    axis.axhline(result["decode_only_s"] * 1e3, color="k", lw=0.6, ls=":")
    axis.set_xlabel("TTFT of the long prompt, s")
    axis.set_ylabel("ITL p99 of the streams beside it, ms")
    axis.set_ylim(bottom=0)
    load = result["load"]
    axis.set_title(
        f"{result['shape']} {result['dtype']}: {load['n_streams']} streams, a prompt of "
        f"{load['long_prompt']}; dotted: a step that only decodes",
        fontsize=9,
    )
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    save(figure, path)


def soak(result: dict[str, Any], path: Path) -> None:
    """Draw memory over time, under load and in pauses."""
    figure, axis = plt.subplots(figsize=(8, 3.6))
    axis.plot([t / 60 for t, _ in result["rss"]], [mib for _, mib in result["rss"]], lw=0.8)
    looks = result["looks"]
    at, held = [look["at"] / 60 for look in looks], [look["held"]["rss_mib"] for look in looks]
    axis.plot(at, held, "o", ms=3, color="#c2410c", label="in a pause")
    axis.set_xlabel("minutes")
    axis.set_ylabel("resident memory, MiB")
    axis.set_ylim(bottom=0)
    lag = result["lag_s"]
    axis.set_title(
        f"{sum(result['endings'].values()):,} requests; loop lag p50 {lag['p50'] * 1e3:.2f}, "
        f"p99 {lag['p99'] * 1e3:.2f} ms",
        fontsize=10,
    )
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    save(figure, path)


PICTURES: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "frontier": frontier,
    "load": loads,
    "simulation": policies,
    "soak": soak,
    **sidecar_plots.PICTURES,
}
"""The plot functions by kind of result."""

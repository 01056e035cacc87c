"""Plots (SVG) of sidecar benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report.plots import plt, save

__all__ = ["PICTURES", "chaos", "hold"]

_COLOURS = {"SIGKILL": "#c2410c", "SIGSTOP": "#4338ca", "SIGABRT": "#0f766e"}


def chaos(result: dict[str, Any], path: Path) -> None:
    """Draw tokens a second over time, with the faults and the pauses after them."""
    figure, axis = plt.subplots(figsize=(9, 3.6))
    width = result["bin_s"]
    rates = [count / width for count in result["tokens_by_bin"]]
    axis.plot([(i + 0.5) * width for i in range(len(rates))], rates, lw=0.8, color="#525252")
    for kind in dict.fromkeys(fault["kind"] for fault in result["blows"]):
        for i, fault in enumerate(b for b in result["blows"] if b["kind"] == kind):
            colour = _COLOURS.get(kind, "k")
            label = kind if not i else "_"  # the legend has it once
            axis.axvline(fault["at"], color=colour, lw=0.8, label=label)
            axis.axvspan(fault["at"], fault["at"] + fault["pause"], color=colour, alpha=0.12, lw=0)
    axis.set_xlabel("seconds")
    axis.set_ylabel("tokens a second")
    axis.set_ylim(bottom=0)
    longest = max((fault["pause"] for fault in result["blows"]), default=0.0)
    axis.set_title(
        f"{result['shape']}: {result['streams']} streams and what becomes of their worker; "
        f"longest pause {longest:.2f} s",
        fontsize=10,
    )
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8, loc="upper right")
    save(figure, path)


def hold(result: dict[str, Any], path: Path) -> None:
    """Draw the front's memory over time, and the tokens in flight."""
    figure, axis = plt.subplots(figsize=(8, 3.6))
    samples = result["samples"]
    minutes = [sample["at"] / 60 for sample in samples]
    memory = [sample["rss_mib"] for sample in samples]
    axis.plot(minutes, memory, color="#c2410c", label="memory")
    axis.set_xlabel("minutes")
    axis.set_ylabel("the front's resident memory, MiB")
    axis.set_ylim(0, 1.2 * max(memory))
    other = axis.twinx()
    tokens = [sample["tokens_in_flight"] for sample in samples]
    other.plot(minutes, tokens, lw=0.8, color="#0f766e", label="tokens in flight")
    other.set_ylabel("tokens in flight")
    other.set_ylim(0, 1.6 * max(tokens))
    lag = result["front_lag_s"]
    axis.set_title(
        f"{result['connections']} connections with {result['each']} requests each; the front's "
        f"loop lag p50 {lag['p50'] * 1e3:.2f}, p99 {lag['p99'] * 1e3:.2f} ms",
        fontsize=10,
    )
    axis.grid(alpha=0.3)
    figure.legend(frameon=False, loc="lower right", bbox_to_anchor=(0.88, 0.15))
    save(figure, path)


PICTURES: dict[str, Callable[[dict[str, Any], Path], None]] = {"chaos": chaos, "hold": hold}
"""The plot functions by kind of result."""

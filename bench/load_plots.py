"""Pictures (SVG) of what schedulers do under load. The same results give the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .plots import plt, save

__all__ = ["PICTURES", "loads"]


def loads(result: dict[str, Any], path: Path) -> None:
    """TTFT, gaps and goodput by the rate of arrivals, a line a policy."""
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


PICTURES: dict[str, Callable[[dict[str, Any], Path], None]] = {"load": loads}
"""By kind of result."""

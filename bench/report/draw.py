"""Draw a result's plot into docs/plots/."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["PLOTS", "draw_result", "picture_name"]

PLOTS = Path(__file__).parents[2] / "docs" / "plots"

_NAMES: dict[str, Callable[[dict[str, Any]], str]] = {
    "simulation": lambda r: f"simulation-{r['load']}.svg",
    "frontier": lambda r: f"frontier-{r['shape']}-{r['dtype']}.svg",
    "soak": lambda r: "soak.svg",
    "hold": lambda r: "hold.svg",
    "chaos": lambda r: f"chaos-{r['shape']}.svg",
    "load": lambda r: f"load-{r['load']}-{r['shape']}-{r['dtype']}.svg",
}


def picture_name(kind: str, result: dict[str, Any]) -> str | None:
    """Return the file name of a result's plot. None: its kind has no plot."""
    return _NAMES[kind](result) if kind in _NAMES else None


def draw_result(kind: str, result: dict[str, Any], folder: Path = PLOTS) -> str | None:
    """Draw the result's plot; return the file's name.

    Returns None for a kind without a plot, and without matplotlib, with a message on stderr.
    """
    name = picture_name(kind, result)
    if name is None:
        return None
    try:
        from bench.report import load_plots
    except ImportError as error:
        print(f"no plots: {error}; `pip install '.[bench]'` brings it", file=sys.stderr)
        return None
    folder.mkdir(parents=True, exist_ok=True)
    load_plots.PICTURES[kind](result, folder / name)
    return name

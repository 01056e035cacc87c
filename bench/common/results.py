"""Results as JSON files in bench/results/: the newest of each subject."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "read_results", "write_result"]

RESULTS = Path(__file__).parents[1] / "results"


def write_result(name: str, result: dict[str, Any], folder: Path | None = None) -> Path:
    """Write the result of that name, in place of an older one; return its path.

    folder: None = bench/results.
    """
    folder = RESULTS if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.json"
    target.write_text(json.dumps(_rounded(result), indent=1) + "\n")
    return target


def read_results(pattern: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return all results whose name matches, ordered by name."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob(f"{pattern}.json"))]


def _rounded(value: Any) -> Any:
    """Return the value with every float rounded to five digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value

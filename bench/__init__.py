"""Benchmarks: README.md says which command answers which question. Not installed.

`python -m bench.NAME` runs NAME.py of any room, so that a command keeps its name if it moves.
"""

from pathlib import Path

ROOMS = (
    *("common", "convert", "engines", "report", "engine", "structured", "serving"),
    *("http", "hostile", "simulation", "gpu"),
)
"""The rooms, each of which imports only those before it."""

__path__.extend(str(Path(__file__).parent / room) for room in ROOMS)

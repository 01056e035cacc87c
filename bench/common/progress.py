"""A progress bar on stderr: the current work, the share done, the time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["Bar", "bar"]


class Bar:
    """Progress output of a benchmark: lines above a bar; without a terminal only lines."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)

    def now(self, what: str) -> None:
        """Set the description of the current work."""
        self._progress.update(self._task, description=what)

    def advance(self, count: int = 1) -> None:
        """Advance the bar by part of the total."""
        self._progress.advance(self._task, count)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def bar(total: int) -> Iterator[Bar]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield Bar(progress, total)

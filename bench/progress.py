"""A progress bar on stderr, with what is done, what is left and for how long."""

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
    """What a benchmark says while it runs. Lines go above the bar; in a pipe they are all."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)

    def now(self, what: str) -> None:
        """What is being done."""
        self._progress.update(self._task, description=what)

    def advance(self, count: int = 1) -> None:
        """So much of the total is done."""
        self._progress.advance(self._task, count)

    def say(self, line: str) -> None:
        """A line that stays."""
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

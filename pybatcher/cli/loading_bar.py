"""A progress bar on stderr while a model is loaded, on a terminal and if it takes long."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["loading_bar"]

SHOW_AFTER = 0.3  # seconds from the first weights until the bar is shown


@contextlib.contextmanager
def loading_bar(what: str = "loading the model") -> Iterator[Callable[[int, int], None] | None]:
    """Yield a progress callback (bytes loaded, bytes in all); None if stderr is not a terminal.

    Removes the bar when the load is complete, or the context ends.
    """
    if not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(what)
    try:
        yield bar
    finally:
        bar.stop()


class _Bar:
    def __init__(self, what: str) -> None:
        self._what = what
        self._begin: float | None = None  # the time of the first weights; imports come before them
        self._shown: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._begin is None:
            self._begin = time.monotonic()
        if done >= total:
            self.stop()
            self._begin = self._shown = None  # weights are loaded after they were downloaded
        elif time.monotonic() - self._begin >= SHOW_AFTER:
            if self._shown is None:
                self._shown = _progress(self._what)
                self._shown.add_task("loading", total=total)
                self._shown.start()
            self._shown.update(self._shown.task_ids[0], completed=done, total=total)

    def stop(self) -> None:
        if self._shown is not None:
            self._shown.stop()


def _progress(what: str) -> Progress:
    return Progress(
        TextColumn(what),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )

"""A bar on stderr while a model is loaded, where somebody looks and it takes long enough."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["loading_bar"]

PATIENCE = 0.3  # seconds from the first weights until there is a bar


@contextlib.contextmanager
def loading_bar() -> Iterator[Callable[[int, int], None] | None]:
    """What to tell of a load's progress; None where stderr is no terminal.

    The bar goes away when the load is done, or where the context is left.
    """
    if not sys.stderr.isatty():
        yield None
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.stop()


class _Bar:
    def __init__(self) -> None:
        self._begin: float | None = None  # of the weights; imports come before them
        self._shown: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._begin is None:
            self._begin = time.monotonic()
        if done >= total:
            self.stop()
        elif time.monotonic() - self._begin >= PATIENCE:
            if self._shown is None:
                self._shown = _progress()
                self._shown.add_task("loading", total=total)
                self._shown.start()
            self._shown.update(self._shown.task_ids[0], completed=done, total=total)

    def stop(self) -> None:
        if self._shown is not None:
            self._shown.stop()


def _progress() -> Progress:
    return Progress(
        TextColumn("loading the model"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )

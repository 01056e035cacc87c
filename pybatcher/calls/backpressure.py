"""`Backpressure`: pauses the requests of a call whose results are not read.

A paused request waits while other requests have work (ADR 0048). Only clients at the other end of a
connection are watched: a program may begin several streams and read one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

__all__ = ["CURRENT_BACKPRESSURE", "Backpressure"]


class Backpressure:
    """The pause state of one call: set by its readers, watched by the code that serves it.

    A call is paused while at least one reader pauses it. For one event loop.

    most_unread: number of unread pieces of one output at which its reader pauses the call. A
        reader that forwards through buffers of its own uses a lower number.
    """

    def __init__(self, most_unread: int = 128) -> None:
        self.most_unread = most_unread
        self._holders: set[object] = set()
        self._watchers: list[Callable[[bool], object]] = []

    @property
    def is_paused(self) -> bool:
        """True while a reader pauses the call."""
        return bool(self._holders)

    def pause(self, holder: object) -> None:
        """Pause the call on behalf of `holder`. A second call has no effect."""
        was_paused = self.is_paused
        self._holders.add(holder)
        if not was_paused:
            self._notify(True)

    def resume(self, holder: object) -> None:
        """End the pause of `holder`. The call resumes when no holder is left."""
        if holder in self._holders:
            self._holders.remove(holder)
            if not self._holders:
                self._notify(False)

    def watch(self, watcher: Callable[[bool], object]) -> Callable[[], None]:
        """Call `watcher` with `is_paused` at each change. Return a function that removes it."""
        self._watchers.append(watcher)
        return partial(self._watchers.remove, watcher)

    def _notify(self, is_paused: bool) -> None:
        for watcher in list(self._watchers):
            watcher(is_paused)


CURRENT_BACKPRESSURE: ContextVar[Backpressure | None] = ContextVar(
    "pybatcher_backpressure", default=None
)
"""The back-pressure that calls of this task, and of tasks started by it, share; None: no pauses."""

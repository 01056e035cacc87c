"""`Reading`: whether somebody reads what is made for a call.

What nobody reads yields: its requests wait while others have work (ADR 0048). Only clients at the
other end of a connection are watched: a program may begin several streams and read one after the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

__all__ = ["CURRENT_READING", "Reading"]


class Reading:
    """Told by those who read a call's results, and watched by those who make them.

    It is held while one of its holders says that nobody reads. For one event loop.

    most_unread: pieces of one output that wait for their reader before it counts as gone. Whoever
        reads for somebody else, with buffers on the way, has a lower one.
    """

    def __init__(self, most_unread: int = 128) -> None:
        self.most_unread = most_unread
        self._holders: set[object] = set()
        self._watchers: list[Callable[[bool], object]] = []

    @property
    def is_held(self) -> bool:
        """True while nobody reads."""
        return bool(self._holders)

    def hold(self, holder: object) -> None:
        """Note that nobody reads what `holder` has. Does nothing the second time."""
        was_held = self.is_held
        self._holders.add(holder)
        if not was_held:
            self._tell(True)

    def release(self, holder: object) -> None:
        """Note that somebody reads what `holder` has. Does nothing the second time."""
        if holder in self._holders:
            self._holders.remove(holder)
            if not self._holders:
                self._tell(False)

    def watch(self, watcher: Callable[[bool], object]) -> Callable[[], None]:
        """Call `watcher` with `is_held` whenever it changes. Return a function that ends that."""
        self._watchers.append(watcher)
        return partial(self._watchers.remove, watcher)

    def _tell(self, is_held: bool) -> None:
        for watcher in list(self._watchers):
            watcher(is_held)


CURRENT_READING: ContextVar[Reading | None] = ContextVar("pybatcher_reading", default=None)
"""Shared by all calls of a task, and of tasks that it starts. None: a program reads, unwatched."""

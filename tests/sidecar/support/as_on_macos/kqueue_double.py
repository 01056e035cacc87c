"""`select.kqueue` of macOS as far as `WorkerProcess` uses it, by Linux's means."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

__all__ = ["KQUEUE"]

# <sys/event.h>
_FILTER_PROC = -5
_EV_ADD = 1
_NOTE_EXIT = 0x80000000

_waitid = os.waitid  # taken away where the whole of Python is as on macOS


class _Event(NamedTuple):
    ident: int
    filter: int
    flags: int
    fflags: int


class _Queue:
    def __init__(self) -> None:
        self._descriptor = os.open("/dev/null", os.O_RDONLY)

    def control(self, changes: list[_Event], max_events: int) -> list[_Event]:
        """Wait for the process to end, and leave the zombie."""
        (event,) = changes
        assert (*event[1:], max_events) == (_FILTER_PROC, _EV_ADD, _NOTE_EXIT, 1)
        with suppress(ChildProcessError):
            _waitid(os.P_PID, event.ident, os.WEXITED | os.WNOWAIT)
        return changes

    def close(self) -> None:
        os.close(self._descriptor)


KQUEUE = {
    "kqueue": _Queue,
    "kevent": _Event,
    "KQ_FILTER_PROC": _FILTER_PROC,
    "KQ_EV_ADD": _EV_ADD,
    "KQ_NOTE_EXIT": _NOTE_EXIT,
}
"""What `select` has there."""

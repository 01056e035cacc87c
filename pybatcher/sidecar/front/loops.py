"""`run`: as `asyncio.run`, on uvloop if that is installed."""

from __future__ import annotations

import asyncio
import gc
import logging
import sysconfig
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["new_loop", "run"]

_T = TypeVar("_T")
_LOGGER = logging.getLogger("pybatcher.sidecar")

_YOUNG = 10_000
"""New objects that trigger a garbage collection. With Python's default of 700, a burst of ten
thousand connections has all objects scanned ten times, each time for 0.1 s.
"""

_LOTS = 100
"""Young collections between scans of older objects, which block the process for 0.1 s. With
Python's default of 10 that is every few seconds during a burst of connections; ten thousand
connections are fewer young collections than this.
"""

_ACCEPT_FAILED = "socket.accept() out of system resource"
"""The message with which asyncio reports that there is no descriptor for a new connection. It stops
accepting for a second then, and tries again.
"""

_SILENCE = 60.0
"""Seconds between two lines of the log about that."""


def new_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the sidecar's event loops; None: that of asyncio."""
    try:
        import uvloop
    except ImportError:
        return None
    make: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return make


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on a loop of its own, on this thread, and return its result.

    Meanwhile garbage is collected in fewer, larger batches, and old objects rarely. The thresholds
    stay unchanged without the GIL: that collector has no generations, considers memory too, and
    would wait for up to 40 batches, which may be hundreds of MB.
    """
    before = gc.get_threshold()
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        gc.set_threshold(_YOUNG, _LOTS, before[2])
    try:
        with asyncio.Runner(loop_factory=new_loop()) as runner:
            runner.get_loop().set_exception_handler(_ExceptionHandler())
            return runner.run(main)
    finally:
        gc.set_threshold(*before)


class _ExceptionHandler:
    """Logs as asyncio does, but failed accepts rarely: clients cause them, and each retry again."""

    def __init__(self) -> None:
        self._silent_until = 0.0
        self._n_silent = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what `asyncio.loop.call_exception_handler` was called with."""
        if context.get("message") != _ACCEPT_FAILED:
            loop.default_exception_handler(context)
            return
        self._n_silent += 1
        if loop.time() < self._silent_until:
            return
        self._silent_until = loop.time() + _SILENCE
        _LOGGER.warning(
            "new connections wait: %s (%d times since the last such line); raise the limit of "
            "open files (ulimit -n), or lower max_connections",
            context.get("exception"),
            self._n_silent,
        )
        self._n_silent = 0

"""`run`: as `asyncio.run`, on uvloop where that is installed."""

from __future__ import annotations

import asyncio
import gc
import sysconfig
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["new_loop", "run"]

_T = TypeVar("_T")

_YOUNG = 10_000
"""Objects that are new when the garbage collector looks. By Python's own 700, ten thousand
connections that come have all objects looked at ten times, each time for 0.1 s."""

_LOTS = 100
"""Lots after which it looks at older objects, too, and nothing else happens for 0.1 s. By Python's
own 10 that is every few seconds while a crowd of connections comes; ten thousand are fewer lots."""


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

    Meanwhile the process's garbage is collected in fewer, larger lots, and old objects rarely. Not
    so without the GIL: that collector has no generations, looks at memory too, and waits for up to
    40 lots, where what it collects may be hundreds of MB.
    """
    before = gc.get_threshold()
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        gc.set_threshold(_YOUNG, _LOTS, before[2])
    try:
        with asyncio.Runner(loop_factory=new_loop()) as runner:
            return runner.run(main)
    finally:
        gc.set_threshold(*before)

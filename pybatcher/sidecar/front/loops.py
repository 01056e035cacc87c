"""`run`: as `asyncio.run`, on uvloop where that is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["new_loop", "run"]

_T = TypeVar("_T")


def new_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the sidecar's event loops; None: that of asyncio."""
    try:
        import uvloop
    except ImportError:
        return None
    make: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return make


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on a loop of its own, on this thread, and return its result."""
    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(main)

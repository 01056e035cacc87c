"""An event loop whose time is not the wall's: a timer is due as soon as nothing else is to do.

So a test may let an hour pass, and what is not done within it is not done at all; no machine
is too slow or too fast. Only for what waits for timers and for this loop: while a thread
computes, time would run away.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

__all__ = ["VirtualTimeLoop", "in_virtual_time"]

_P = ParamSpec("_P")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 0 and jumps from timer to timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait for its threads without a limit, which would be over at once."""
        await super().shutdown_default_executor()


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for no timer: where no file is ready, the time is that of the next timer at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready


def in_virtual_time(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """Run an async test on a `VirtualTimeLoop`. `asyncio.get_running_loop().time` is its clock."""

    @functools.wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run

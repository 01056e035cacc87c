"""`LoopThread`: an event loop on a thread of its own; `on_own_thread`: work beside a loop."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ...errors import BatcherClosedError

__all__ = ["LoopThread"]

_T = TypeVar("_T")


class LoopThread:
    """A daemon thread that runs an event loop until it is stopped.

    owner: the name of the object that runs there, for error messages.
    """

    def __init__(self, name: str, *, owner: str = "batcher") -> None:
        self._owner = owner
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._stopping = False
        self._loop = asyncio.new_event_loop()
        _threads.add(self)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_forked(self) -> bool:
        """True in a fork of the process, which has no such thread."""
        return os.getpid() != self._pid

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop and return its result; cancel it on an interrupt (Ctrl-C).

        Raises BatcherClosedError once the loop is stopped, and in a fork.
        """
        if self.is_forked:
            coroutine.close()
            raise BatcherClosedError(
                f"the {self._owner} runs in process {self._pid} and this is a fork of it, without "
                f"its threads; make a {self._owner} in each process, after the fork"
            )
        with self._lock:
            if self._stopping:
                coroutine.close()
                raise BatcherClosedError(f"the {self._owner} is closed; make another")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function on the loop, soon. Never waits; does nothing once the loop is stopped."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def stop(
        self,
        after: Callable[[], Awaitable[None]] | None = None,
        timeout: float | None = None,
    ) -> None:
        """End loop and thread once `after` and all coroutines under way are done.

        timeout: most seconds to wait for the end; None: no limit. On the loop's own thread, and
        in a fork, it does not wait at all.
        """
        if self.is_forked:  # the lock may have been held at the fork
            return
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        asyncio.run_coroutine_threadsafe(self._end(after), self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    async def _end(self, after: Callable[[], Awaitable[None]] | None) -> None:
        try:
            if after is not None:
                await after()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others)
        finally:
            self._loop.stop()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


def on_own_thread(
    function: Callable[[], _T], name: str, ended: Callable[[], object] | None = None
) -> asyncio.Future[_T]:
    """Return a future of the running loop that gets the result of a function on a daemon thread.

    For functions that cannot be stopped and may never return, as those that read files of a mount
    that hangs: the thread is none of those of `asyncio.to_thread`, and the process ends without it.
    ended: called on the loop when the function has ended, also if nobody waits any more. Raises
    RuntimeError if the system has no thread now.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[_T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if ended is not None:
            ended()
        if not result.done():  # else nobody waits any more
            set_it(value)

    def work() -> None:
        set_it: Callable[[Any], None] = result.set_result
        try:
            value: Any = function()
        except BaseException as error:
            set_it, value = result.set_exception, error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, set_it, value)

    threading.Thread(target=work, name=name, daemon=True).start()
    return result


_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def _forget_tasks() -> None:
    """Let a forked child end without asyncio's report of tasks that were pending in its parent."""
    for thread in list(_threads):
        with suppress(RuntimeError):  # the parent was beginning a task
            for task in asyncio.all_tasks(thread._loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_tasks)

"""`RemoteCalls`: runs coroutines of other threads on one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from typing_extensions import override

from ...errors import BatcherClosedError, InvalidRequestError

__all__ = ["LoopFuture", "RemoteCalls"]

_T = TypeVar("_T")
_Function = Callable[[], Coroutine[Any, Any, _T]]


class LoopFuture(Future[_T]):
    """A future of a call on an event loop. Waiting on that loop raises InvalidRequestError."""

    def __init__(self, loop_thread: int) -> None:
        super().__init__()
        self._loop_thread = loop_thread

    @override
    def result(self, timeout: float | None = None) -> _T:
        self._check_thread()
        return super().result(timeout)

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_thread()
        return super().exception(timeout)

    def _check_thread(self) -> None:
        if threading.get_ident() == self._loop_thread and not self.done():
            raise InvalidRequestError(
                "this future is waited for on the event loop that has to do its work, which "
                "would wait for ever; there, await the batcher's own method"
            )


class RemoteCalls:
    """Runs calls of other threads on its loop; every future ends.

    With `asyncio.run_coroutine_threadsafe`, a call that comes just before its loop ends is lost,
    and the thread that waits for it waits for ever. Construct it on the loop, and close it there
    before the loop ends.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._lock = threading.Lock()
        self._is_open = True
        self._not_begun: set[Future[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()  # the loop has only weak references

    def run(self, function: _Function[_T]) -> Future[_T]:
        """Call and await `function` on the loop. From any thread; never waits.

        Cancelling the future cancels the task. Raises BatcherClosedError after `close`.
        """
        future: Future[_T] = LoopFuture(self._loop_thread)
        with self._lock:
            if not self._is_open:
                raise BatcherClosedError("the batcher is closed; start another")
            try:
                self._loop.call_soon_threadsafe(self._begin, future, function)
            except RuntimeError:
                raise BatcherClosedError("the event loop of the batcher is closed") from None
            self._not_begun.add(future)
        return future

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function on the loop, soon; do nothing once the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Take no more calls; those that have not begun fail, the others go on."""
        with self._lock:
            self._is_open = False
            not_begun, self._not_begun = self._not_begun, set()
        for future in not_begun:
            if future.set_running_or_notify_cancel():
                error = "the batcher was closed before this call began"
                future.set_exception(BatcherClosedError(error))

    def _begin(self, future: Future[_T], function: _Function[_T]) -> None:
        with self._lock:
            if future not in self._not_begun:
                return
            self._not_begun.discard(future)
        if future.cancelled():
            future.set_running_or_notify_cancel()
            return
        try:
            task = self._loop.create_task(function())
        except Exception as error:  # from the call itself, such as an unknown argument
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
            return
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._end(task, future))
        future.add_done_callback(lambda future: self._cancel_with(future, task))

    def _end(self, task: asyncio.Task[_T], future: Future[_T]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            future.cancel()
        error = None if task.cancelled() else task.exception()
        if not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(task.result())
        else:
            future.set_exception(error)

    def _cancel_with(self, future: Future[_T], task: asyncio.Task[_T]) -> None:
        if future.cancelled() and not task.done():
            self.call_soon(lambda: _cancel(task))


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()

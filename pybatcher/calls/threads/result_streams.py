"""`BlockingResultStream` and `ThreadsafeResultStream`: maps that other threads or loops read."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from typing_extensions import TypeVar, override

from ..composed.map_results import MapResult, MapWork
from .loop_thread import LoopThread
from .remote_calls import RemoteCalls

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BlockingResultStream", "ThreadsafeResultStream"]

Item = TypeVar("Item", default=Any)
T = TypeVar("T", default=Any)


class _ThreadResults(Iterator[MapResult[Item, T]]):
    """Base of maps that a thread reads: `for result in results`, also in a `with` block.

    The thread that reads takes the items too.
    """

    def __init__(self, work: MapWork[Item, T], loop: LoopThread | RemoteCalls) -> None:
        self._work = work
        self._soon = loop.call_soon

    def close(self) -> None:
        """Begin no more calls, and cancel those in flight. Never waits."""
        self._work.end()
        self._soon(self._work.running.close)

    @override
    def __next__(self) -> MapResult[Item, T]:
        try:
            result = self._wait() if self._work.begin_more(self._soon) else None
            if result is None:
                raise StopIteration
            return self._work.deliver(result)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _wait(self) -> MapResult[Item, T] | None:
        """Wait for the next result."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class BlockingResultStream(_ThreadResults[Item, T]):
    """The results of `map`: `for result in batcher.map(items)`. For one thread.

    Closing it, the end of `with`, an interrupt (Ctrl-C) or dropping it unfinished cancels the calls
    in flight.
    """

    def __init__(self, batcher: object, thread: LoopThread, work: MapWork[Item, T]) -> None:
        super().__init__(work, thread)
        self._batcher = batcher  # it closes itself when it is garbage-collected
        self._thread = thread

    @override
    def _wait(self) -> MapResult[Item, T] | None:
        return self._thread.call(self._work.running.next())


class ThreadsafeResultStream(_ThreadResults[Item, T], AsyncIterator[MapResult[Item, T]]):
    """The results of `map` for another loop (`async for`) or a thread (`for`).

    `for` on the batcher's own loop would deadlock, so it raises InvalidRequestError.
    """

    def __init__(self, work: MapWork[Item, T], calls: RemoteCalls) -> None:
        super().__init__(work, calls)
        self._calls = calls

    @override
    def _wait(self) -> MapResult[Item, T] | None:
        return self._calls.run(self._work.running.next).result()

    @override
    async def __anext__(self) -> MapResult[Item, T]:
        try:
            result = None
            if self._work.begin_more(self._soon):
                result = await asyncio.wrap_future(self._calls.run(self._work.running.next))
            if result is None:
                raise StopAsyncIteration
            return self._work.deliver(result)
        except BaseException:
            self.close()
            raise

    async def aclose(self) -> None:
        """Do what `close` does, for callers that expect an async generator."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

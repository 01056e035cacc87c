"""`Stream`: an output that is read in pieces."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar, override

from ..errors import InvalidRequestError
from .completion import Completion, Piece
from .reply import Reply

if TYPE_CHECKING:
    from typing import Self

__all__ = ["ClosablePieces", "Stream", "next_piece"]

T = TypeVar("T", default=Any)


class ClosablePieces(AsyncIterator[Piece], Generic[T]):
    """Pieces that are read with `async for` and can be closed before their end.

    `await stream` reads the pieces that are left and returns the whole output.
    """

    @property
    @abstractmethod
    def completion(self) -> Completion[T] | None:
        """The whole output; None before its end."""

    @abstractmethod
    def close(self) -> None:
        """Take no more pieces; cancel the request if it has not ended. Never waits."""

    async def aclose(self) -> None:
        """Do what `close` does, for callers that expect an async generator."""
        self.close()

    @override
    def __aiter__(self) -> Self:
        return self

    def __await__(self) -> Generator[Any, Any, Completion[T]]:
        return self._drained().__await__()

    async def _drained(self) -> Completion[T]:
        """Read the pieces that are left, and return the whole output.

        Raises the errors of the pieces, and InvalidRequestError for a stream that was closed, or
        that failed, before its end.
        """
        async for _ in self:
            pass
        if self.completion is None:
            raise InvalidRequestError(
                "this stream was closed, or failed, before its end, so that it has no completion; "
                "begin another"
            )
        return self.completion

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Stream(ClosablePieces[T]):
    """An output as it comes: `async for piece in stream`; `await stream` reads what is left.

    Reading the first piece submits the request. The request is cancelled, and its KV freed, when
    the stream is closed (`aclose`, or the end of `async with`), when the task that waits for a
    piece is cancelled, and when an unfinished stream is garbage-collected. `completion` is set
    after the last piece. With a type as `json_schema` it is a `Completion` of that type.
    """

    def __init__(
        self,
        submit: Callable[[Reply], Awaitable[range]],
        cancel: Callable[[range], None],
    ) -> None:
        """Make a stream over `submit`, which sends the request and returns its ids, and `cancel`.

        cancel: cancels requests by their ids, from any thread.
        """
        self._submit = submit
        self._cancel = cancel
        self._reply = Reply(streams=True)
        self._request_ids: range | None = None
        self._closed = False
        self._is_read = False
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first piece

    @property
    @override
    def completion(self) -> Completion[T] | None:
        return self._reply.completion

    def ready(self) -> list[Piece]:
        """Return the pieces that have come and were not read yet. Never waits.

        A step with accepted drafts delivers several pieces at a time; `ready` returns the others
        after one was awaited.
        """
        if self._closed or self._is_read:
            return []
        return self._reply.take_pieces()

    @override
    async def __anext__(self) -> Piece:
        if self._is_read:
            raise RuntimeError("another task waits for this stream's next piece")
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):  # its pieces would never arrive
            raise InvalidRequestError(
                "this stream was begun in another event loop; read it there, or use "
                "`batcher.threadsafe`, or a BlockingBatcher"
            )
        self._loop = loop
        self._is_read = True
        reply = self._reply
        try:
            if self._request_ids is None and not self._closed:
                self._request_ids = await self._submit(reply)
                if self._closed and not reply.ended:  # by `close` while it was submitted
                    self._cancel(self._request_ids)
            while not (reply.pieces or reply.ended or self._closed):
                await reply.wait()
            if self._closed:
                raise StopAsyncIteration
            if reply.pieces:
                return reply.take_piece()
            reply.result()
            raise StopAsyncIteration
        except BaseException:
            self.close()
            raise
        finally:
            self._is_read = False

    @override
    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._request_ids is not None and not self._reply.ended:
                self._cancel(self._request_ids)
            self._reply.note_read()  # other replies may share the back-pressure
            self._reply.wake()

    def __del__(self) -> None:
        # The garbage collector may run on any thread; only `cancel` is safe here.
        if not self._closed and self._request_ids is not None and not self._reply.ended:
            self._cancel(self._request_ids)


async def next_piece(stream: Stream) -> Piece | None:
    """Return the next piece; None at the end."""
    return await anext(stream, None)

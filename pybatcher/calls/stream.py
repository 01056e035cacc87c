"""`Reply`: where one caller's output is left for it. `Stream`: how it is read in pieces."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import PybatcherError
from .completion import Completion, Piece

if TYPE_CHECKING:
    from typing import Self

__all__ = ["ClosablePieces", "Reply", "Stream", "next_piece"]


class Reply:
    """One caller's output: pieces (if it streams), then a completion or an error.

    Writing never waits for the reader; what is not read yet is bounded by the
    request's own `max_tokens`. Written and read on one loop.
    """

    def __init__(self, *, streams: bool) -> None:
        self.streams = streams
        self.pieces: deque[Piece] = deque()
        self.completion: Completion | None = None
        self._error: PybatcherError | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """There will be no more pieces."""
        return self.completion is not None or self._error is not None

    def push(self, piece: Piece) -> None:
        """More output. Only for a reply that streams."""
        self.pieces.append(piece)
        self.wake()

    def finish(self, completion: Completion) -> None:
        """All of the output."""
        self.completion = completion
        self.wake()

    def fail(self, error: PybatcherError) -> None:
        """There will be no more output, and why."""
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Let the reader look again."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def wait(self) -> None:
        """Return at the next change."""
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def result(self) -> Completion:
        """The completion, or the error raised. Only once it has ended."""
        if self._error is not None:
            raise self._error
        if self.completion is None:
            raise RuntimeError("result() was called before the end")
        return self.completion


class ClosablePieces(AsyncIterator[Piece]):
    """Pieces that an event loop reads, and the ways to read no more of them."""

    @abstractmethod
    def close(self) -> None:
        """Take no more; cancels the request if it has not ended. Never waits."""

    async def aclose(self) -> None:
        """As `close`, for those who expect an async generator."""
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Stream(ClosablePieces):
    """An output as it comes: `async for piece in stream`.

    The request is submitted when the first piece is asked for. It is cancelled,
    and its KV freed, when the stream is closed (`aclose`, or the end of `async
    with`), when the task that waits for a piece is cancelled, and when the
    stream is dropped unfinished. `completion` is there after the last piece.
    """

    def __init__(
        self,
        submit: Callable[[Reply], Awaitable[range]],
        cancel: Callable[[range], None],
    ) -> None:
        """submit: sends the request, gives its ids. cancel: takes it back, from any thread."""
        self._submit = submit
        self._cancel = cancel
        self._reply = Reply(streams=True)
        self._request_ids: range | None = None
        self._closed = False
        self._is_read = False

    @property
    def completion(self) -> Completion | None:
        """The whole output, once it has ended."""
        return self._reply.completion

    async def __anext__(self) -> Piece:
        if self._is_read:
            raise RuntimeError("another task waits for this stream's next piece")
        self._is_read = True
        try:
            return await self._next()
        except BaseException:
            self.close()
            raise
        finally:
            self._is_read = False

    async def _next(self) -> Piece:
        reply = self._reply
        if self._request_ids is None and not self._closed:
            self._request_ids = await self._submit(reply)
        while not (reply.pieces or reply.ended or self._closed):
            await reply.wait()
        if self._closed:
            raise StopAsyncIteration
        if reply.pieces:
            return reply.pieces.popleft()
        reply.result()
        raise StopAsyncIteration

    def close(self) -> None:
        """Take no more; cancels the request if it has not ended. Never waits."""
        if not self._closed:
            self._closed = True
            if self._request_ids is not None and not self._reply.ended:
                self._cancel(self._request_ids)
            self._reply.wake()

    def __del__(self) -> None:
        # Any thread may be the one that collects: nothing but `cancel` is safe here.
        if not self._closed and self._request_ids is not None and not self._reply.ended:
            self._cancel(self._request_ids)


async def next_piece(stream: Stream) -> Piece | None:
    """The next piece; None: there is none."""
    return await anext(stream, None)

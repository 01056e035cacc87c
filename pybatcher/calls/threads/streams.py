"""`BlockingStream` and `ThreadsafeStream`: streams for readers outside their batcher's loop."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar, override

from ..completion import Completion, Piece
from ..stream import ClosablePieces, Stream, next_piece
from .loop_thread import LoopThread
from .remote_calls import RemoteCalls

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BlockingStream", "ThreadsafeStream"]

T = TypeVar("T", default=Any)


class _ThreadPieces(Iterator[Piece], Generic[T]):
    """Base of streams that a thread reads: `for piece in stream`, also in a `with` block."""

    _stream: Stream[T]

    @property
    def completion(self) -> Completion[T] | None:
        """The whole output; None before its end."""
        return self._stream.completion

    @abstractmethod
    def close(self) -> None:
        """Take no more pieces; cancel the request if it has not ended. Never waits."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class BlockingStream(_ThreadPieces[T]):
    """An output as it comes: `for piece in stream`. For one thread.

    Closing it, the end of `with`, or dropping it unfinished cancels the request.
    """

    def __init__(self, batcher: object, thread: LoopThread, stream: Stream[T]) -> None:
        # a reference keeps the batcher, which closes itself when it is garbage-collected
        self._batcher = batcher
        self._thread = thread
        self._stream = stream

    @override
    def __next__(self) -> Piece:
        piece = self._thread.call(next_piece(self._stream))
        if piece is None:
            raise StopIteration
        return piece

    @override
    def close(self) -> None:
        self._thread.call_soon(self._stream.close)


class ThreadsafeStream(_ThreadPieces[T], ClosablePieces[T]):
    """A `Stream` that is read in another loop (`async for`, `await`) or in a thread (`for`).

    `for` on the batcher's own loop would deadlock, so it raises InvalidRequestError.
    """

    def __init__(self, stream: Stream[T], calls: RemoteCalls) -> None:
        self._stream = stream
        self._calls = calls

    @override
    async def __anext__(self) -> Piece:
        piece = await asyncio.wrap_future(self._next())
        if piece is None:
            raise StopAsyncIteration
        return piece

    @override
    def __next__(self) -> Piece:
        piece = self._next().result()
        if piece is None:
            raise StopIteration
        return piece

    @override
    def close(self) -> None:
        self._calls.call_soon(self._stream.close)

    def _next(self) -> Future[Piece | None]:
        return self._calls.run(partial(next_piece, self._stream))

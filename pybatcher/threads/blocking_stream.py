"""`BlockingStream`: a stream that is read without asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from ..calls.completion import Completion, Piece
from ..calls.stream import Stream, next_piece
from .loop_thread import LoopThread

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BlockingStream"]


class BlockingStream(Iterator[Piece]):
    """An output as it comes: `for piece in stream`. For one thread.

    Closing it, the end of `with`, or dropping it unfinished cancels the request.
    """

    def __init__(self, batcher: object, thread: LoopThread, stream: Stream) -> None:
        self._batcher = batcher  # which would close itself if nobody held it
        self._thread = thread
        self._stream = stream

    @property
    def completion(self) -> Completion | None:
        """The whole output, once it has ended."""
        return self._stream.completion

    def __next__(self) -> Piece:
        piece = self._thread.call(next_piece(self._stream))
        if piece is None:
            raise StopIteration
        return piece

    def close(self) -> None:
        """Take no more; cancels the request if it has not ended. Never waits."""
        self._thread.call_soon(self._stream.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

"""`ThreadsafeBatcher`: a batcher's calls for other threads, and for other event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from ..calls.call import Messages, Prompt
from ..calls.completion import Completion, Piece
from ..calls.inquiry import Embedding, Score
from ..calls.prefix_info import PrefixInfo
from ..calls.stream import ClosablePieces, Stream, next_piece
from ..params import SamplingParams
from .remote_calls import RemoteCalls

if TYPE_CHECKING:
    from ..calls.any_batcher import AnyBatcher

__all__ = ["ThreadsafeBatcher", "ThreadsafeStream"]


class ThreadsafeBatcher:
    """What `Batcher.threadsafe` is: its calls, from any thread and any event loop.

        batcher.threadsafe.generate(prompt).result()                       # in a thread
        await asyncio.wrap_future(batcher.threadsafe.generate(prompt))     # in another loop
        async for piece in batcher.threadsafe.stream(prompt): ...          # in another loop

    Arguments are those of `Batcher`. Cancelling a future cancels its request.
    A call raises BatcherClosedError before `start`, after `close` and in a fork;
    all other errors come out of the future. Do not block the batcher's own loop
    with a future's `result`, nor the threads of its `asyncio.to_thread`: both are
    needed for what the future waits for.
    """

    def __init__(self, batcher: AnyBatcher, calls: Callable[[], RemoteCalls]) -> None:
        """calls: gives the way to the batcher's loop, or raises."""
        self._batcher = batcher
        self._calls = calls

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **arguments: Any
    ) -> Future[Completion]:
        """See `Batcher.generate`. Never waits."""
        return self._calls().run(partial(self._batcher.generate, prompt, params, **arguments))

    def chat(
        self, messages: Messages, params: SamplingParams | None = None, **arguments: Any
    ) -> Future[Completion]:
        """See `Batcher.chat`. Never waits."""
        return self._calls().run(partial(self._batcher.chat, messages, params, **arguments))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **arguments: Any
    ) -> ThreadsafeStream:
        """See `Batcher.stream`."""
        stream = self._batcher.stream(prompt, params, **arguments)
        return ThreadsafeStream(stream, self._calls())

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None, **arguments: Any
    ) -> ThreadsafeStream:
        """See `Batcher.stream_chat`."""
        stream = self._batcher.stream_chat(messages, params, **arguments)
        return ThreadsafeStream(stream, self._calls())

    def tokenize(self, content: Prompt | Messages) -> Future[tuple[int, ...]]:
        """See `Batcher.tokenize`. Never waits."""
        return self._calls().run(partial(self._batcher.tokenize, content))

    def detokenize(self, token_ids: Sequence[int]) -> Future[str]:
        """See `Batcher.detokenize`. Never waits."""
        return self._calls().run(partial(self._batcher.detokenize, token_ids))

    def score(
        self, prompt: Prompt, continuations: Sequence[Prompt], **arguments: Any
    ) -> Future[list[Score]]:
        """See `Batcher.score`. Never waits."""
        return self._calls().run(partial(self._batcher.score, prompt, continuations, **arguments))

    def embed(self, texts: Sequence[Prompt], **arguments: Any) -> Future[list[Embedding]]:
        """See `Batcher.embed`. Never waits."""
        return self._calls().run(partial(self._batcher.embed, texts, **arguments))

    def add_prefix(self, prefix: Prompt, **arguments: Any) -> Future[PrefixInfo]:
        """See `Batcher.add_prefix`. Never waits."""
        return self._calls().run(partial(self._batcher.add_prefix, prefix, **arguments))

    def prefixes(self) -> tuple[PrefixInfo, ...]:
        """See `Batcher.prefixes`. Never waits."""
        return self._batcher.prefixes()  # type: ignore[return-value]

    def remove_prefix(self, name: str, namespace: str | None = None) -> Future[None]:
        """See `Batcher.remove_prefix`. Never waits."""
        return self._calls().run(partial(self._batcher.remove_prefix, name, namespace))


class ThreadsafeStream(ClosablePieces):
    """A `Stream` that is read in another loop than its batcher's. Else the same."""

    def __init__(self, stream: Stream, calls: RemoteCalls) -> None:
        self._stream = stream
        self._calls = calls

    @property
    def completion(self) -> Completion | None:
        """The whole output, once it has ended."""
        return self._stream.completion

    async def __anext__(self) -> Piece:
        piece = await asyncio.wrap_future(self._calls.run(partial(next_piece, self._stream)))
        if piece is None:
            raise StopAsyncIteration
        return piece

    def close(self) -> None:
        """Take no more; cancels the request if it has not ended. Never waits."""
        self._calls.call_soon(self._stream.close)

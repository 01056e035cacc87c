"""`BlockingBatcher`: the same batcher for code without asyncio, from any number of threads."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .batcher import Batcher
from .completion import Completion, Piece
from .errors import BatcherClosedError
from .loop_thread import LoopThread
from .params import SamplingParams
from .prompts import Messages, Prompt
from .statistics import BatcherStatistics, Health
from .stream import Stream
from .telemetry import Handler

if TYPE_CHECKING:
    from typing import Self

    from .engine import Progress

__all__ = ["BlockingBatcher", "BlockingStream"]


class BlockingBatcher:
    """A `Batcher` on an event loop and a thread of its own. Its methods wait and return.

        with BlockingBatcher("path/to/model") as batcher:
            answer = batcher.generate("Once upon a time", max_tokens=64)

    Threads that call it at the same time share forward passes. A call that is
    interrupted (Ctrl-C) cancels its request. What is not closed is closed,
    without draining, when it is collected or the interpreter exits. Arguments
    and errors are those of `Batcher`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        system_prompt: str | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        self._configure(Batcher(model, system_prompt=system_prompt, progress=progress, **options))

    @classmethod
    def from_torch(
        cls, module: Any, tokenizer: Any, *, system_prompt: str | None = None, **options: Any
    ) -> Self:
        """Over a live transformers module. See `Batcher.from_torch`."""
        return cls.over(
            Batcher.from_torch(module, tokenizer, system_prompt=system_prompt, **options)
        )

    @classmethod
    def over(cls, batcher: Batcher) -> Self:
        """Over a batcher that was not started yet; it is not to be used otherwise then."""
        self = cls.__new__(cls)
        self._configure(batcher)
        return self

    def _configure(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._thread: LoopThread | None = None
        self._abandon: weakref.finalize[..., BlockingBatcher] | None = None

    def start(self) -> None:
        """Open the model and begin to serve. Started already, it does nothing."""
        if self._thread is None:
            self._thread = LoopThread("pybatcher-loop")
            self._abandon = weakref.finalize(self, _abandon, self._thread, self._batcher)
        try:
            self._thread.call(self._batcher.start())
        except BaseException:
            self.close(drain=False)
            raise

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """End as `Batcher.close` does, and the thread too. Closing again does nothing."""
        if self._thread is None or self._abandon is None or not self._abandon.alive:
            return
        self._thread.call(self._batcher.close(drain, timeout))
        self._abandon.detach()
        self._thread.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Drains; after an exception it does not."""
        self.close(drain=exc_type is None)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        namespace: str | None = None,
        **sampling: Any,
    ) -> Completion:
        """Continue `prompt`. See `Batcher.generate`."""
        return self._running_thread().call(
            self._batcher.generate(prompt, params, timeout=timeout, namespace=namespace, **sampling)
        )

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        namespace: str | None = None,
        **sampling: Any,
    ) -> BlockingStream:
        """In pieces as they come: `for piece in batcher.stream(prompt)`."""
        return BlockingStream(
            self,
            self._running_thread(),
            self._batcher.stream(prompt, params, timeout=timeout, namespace=namespace, **sampling),
        )

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        namespace: str | None = None,
        **sampling: Any,
    ) -> Completion:
        """The assistant's next turn. See `Batcher.chat`."""
        return self._running_thread().call(
            self._batcher.chat(messages, params, timeout=timeout, namespace=namespace, **sampling)
        )

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        namespace: str | None = None,
        **sampling: Any,
    ) -> BlockingStream:
        """As `chat`, in pieces as they come."""
        return BlockingStream(
            self,
            self._running_thread(),
            self._batcher.stream_chat(
                messages, params, timeout=timeout, namespace=namespace, **sampling
            ),
        )

    def attach(self, handler: Handler) -> Callable[[], None]:
        """Have `handler` called with every event, on the batcher's own thread.

        It must not call this batcher's waiting methods: they wait for that thread. Call what is
        returned to detach it; from another thread, an event that is under way may still come.
        See `Batcher.attach`.
        """
        return self._batcher.attach(handler)

    @property
    def model_name(self) -> str:
        """Of the model, for people. Raises BatcherClosedError before `start`."""
        return self._batcher.model_name

    def statistics(self) -> BatcherStatistics:
        """Counts since the start. Raises BatcherClosedError before `start`."""
        return self._batcher.statistics()

    def health(self) -> Health:
        """Whether requests are served, and if not, why."""
        return self._batcher.health()

    def _running_thread(self) -> LoopThread:
        if self._thread is None:
            raise BatcherClosedError(
                "the batcher was not started; use `with batcher` or `batcher.start()`"
            )
        return self._thread


class BlockingStream(Iterator[Piece]):
    """An output as it comes: `for piece in stream`. For one thread.

    Closing it, the end of `with`, or dropping it unfinished cancels the request.
    """

    def __init__(self, batcher: BlockingBatcher, thread: LoopThread, stream: Stream) -> None:
        self._batcher = batcher  # which would close itself if nobody held it
        self._thread = thread
        self._stream = stream

    @property
    def completion(self) -> Completion | None:
        """The whole output, once it has ended."""
        return self._stream.completion

    def __next__(self) -> Piece:
        piece = self._thread.call(_next_piece(self._stream))
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


async def _next_piece(stream: Stream) -> Piece | None:
    return await anext(stream, None)


def _abandon(thread: LoopThread, batcher: Batcher) -> None:
    """Nobody holds the batcher any more, or the interpreter exits."""
    thread.stop(after=lambda: batcher.close(drain=False), patience=_EXIT_PATIENCE)


_EXIT_PATIENCE = 10.0
"""Seconds that an exiting interpreter waits for the step under way."""

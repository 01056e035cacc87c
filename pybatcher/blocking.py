"""`BlockingBatcher`: the same batcher for code without asyncio, from any number of threads."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .batcher import Batcher
from .completion import Completion, Piece
from .errors import BatcherClosedError
from .inquiry import Embedding, Score
from .loop_thread import LoopThread
from .params import SamplingParams
from .prefix_info import PrefixInfo
from .prompts import Messages, Prompt
from .scheduling import Pooling
from .statistics import BatcherStatistics, Health
from .stream import Stream, next_piece
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
        priority: int = 0,
        timeout: float | None = None,
        namespace: str | None = None,
        **sampling: Any,
    ) -> Completion:
        """Continue `prompt`. See `Batcher.generate`."""
        return self._running_thread().call(
            self._batcher.generate(
                prompt, params, priority=priority, timeout=timeout, namespace=namespace, **sampling
            )
        )

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        namespace: str | None = None,
        **sampling: Any,
    ) -> BlockingStream:
        """In pieces as they come: `for piece in batcher.stream(prompt)`."""
        return BlockingStream(
            self,
            self._running_thread(),
            self._batcher.stream(
                prompt, params, priority=priority, timeout=timeout, namespace=namespace, **sampling
            ),
        )

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        namespace: str | None = None,
        **sampling: Any,
    ) -> Completion:
        """The assistant's next turn. See `Batcher.chat`."""
        return self._running_thread().call(
            self._batcher.chat(
                messages,
                params,
                priority=priority,
                timeout=timeout,
                namespace=namespace,
                **sampling,
            )
        )

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        namespace: str | None = None,
        **sampling: Any,
    ) -> BlockingStream:
        """As `chat`, in pieces as they come."""
        return BlockingStream(
            self,
            self._running_thread(),
            self._batcher.stream_chat(
                messages,
                params,
                priority=priority,
                timeout=timeout,
                namespace=namespace,
                **sampling,
            ),
        )

    def score(
        self,
        prompt: Prompt,
        continuations: Sequence[Prompt],
        *,
        priority: int = 0,
        timeout: float | None = None,
        namespace: str | None = None,
    ) -> list[Score]:
        """How likely each continuation is. See `Batcher.score`."""
        return self._running_thread().call(
            self._batcher.score(
                prompt, continuations, priority=priority, timeout=timeout, namespace=namespace
            )
        )

    def embed(
        self,
        texts: Sequence[Prompt],
        *,
        pooling: Pooling = "last",
        priority: int = 0,
        timeout: float | None = None,
        namespace: str | None = None,
    ) -> list[Embedding]:
        """Each text as one vector. See `Batcher.embed`."""
        return self._running_thread().call(
            self._batcher.embed(
                texts, pooling=pooling, priority=priority, timeout=timeout, namespace=namespace
            )
        )

    def add_prefix(
        self, prefix: Prompt, *, name: str | None = None, namespace: str | None = None
    ) -> PrefixInfo:
        """Compute a beginning once and keep it. See `Batcher.add_prefix`."""
        return self._running_thread().call(
            self._batcher.add_prefix(prefix, name=name, namespace=namespace)
        )

    def remove_prefix(self, name: str, namespace: str | None = None) -> None:
        """Undo one `add_prefix`. See `Batcher.remove_prefix`."""
        self._running_thread().call(self._batcher.remove_prefix(name, namespace))

    def prefixes(self) -> tuple[PrefixInfo, ...]:
        """All that are kept. See `Batcher.prefixes`."""
        return self._batcher.prefixes()

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


def _abandon(thread: LoopThread, batcher: Batcher) -> None:
    """Nobody holds the batcher any more, or the interpreter exits."""
    thread.stop(after=lambda: batcher.close(drain=False), patience=_EXIT_PATIENCE)


_EXIT_PATIENCE = 10.0
"""Seconds that an exiting interpreter waits for the step under way."""

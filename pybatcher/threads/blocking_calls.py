"""`BlockingCalls`: the calls of a batcher for code without asyncio, from any number of threads."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ..calls.any_batcher import AnyBatcher
from ..calls.call import Messages, Prompt
from ..calls.completion import Completion
from ..calls.inquiry import Embedding, Score
from ..calls.prefix_info import PrefixInfo
from ..calls.statistics import BatcherStatistics, Health
from ..calls.telemetry import Handler
from ..errors import BatcherClosedError
from ..params import SamplingParams
from ..scheduling import Pooling
from .blocking_stream import BlockingStream
from .loop_thread import LoopThread

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BlockingCalls"]

B = TypeVar("B", bound=AnyBatcher)


class BlockingCalls(ABC, Generic[B]):
    """What serves, on an event loop and a thread of its own. The methods wait and return.

    Threads that call at the same time are served at the same time. A call that is interrupted
    (Ctrl-C) cancels its request. What is not closed is closed, without draining, when it is
    collected or the interpreter exits.
    """

    _own_name: ClassVar[str]
    """What errors call it."""

    @classmethod
    def over(cls, batcher: B) -> Self:
        """Over what was not started yet; it is not to be used otherwise then."""
        self = cls.__new__(cls)
        self._configure(batcher)
        return self

    def _configure(self, batcher: B) -> None:
        self._batcher = batcher
        self._thread: LoopThread | None = None
        self._abandon: weakref.finalize[..., BlockingCalls[B]] | None = None

    def start(self) -> None:
        """Begin to serve, as the `start` of what is called does. Started, it does nothing."""
        if self._thread is None:
            self._thread = LoopThread("pybatcher-loop", owner=self._own_name)
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

    def tokenize(self, content: Prompt | Messages) -> tuple[int, ...]:
        """The token ids that `generate` or `chat` would go on from. See `Batcher.tokenize`."""
        return self._running_thread().call(self._batcher.tokenize(content))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids. See `Batcher.detokenize`."""
        return self._running_thread().call(self._batcher.detokenize(token_ids))

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

    @abstractmethod
    def prefixes(self) -> tuple[PrefixInfo, ...]:
        """All that are kept. See `Batcher.prefixes`."""

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

    @abstractmethod
    def statistics(self) -> BatcherStatistics:
        """Counts since the start. Raises BatcherClosedError before `start`."""

    @abstractmethod
    def health(self) -> Health:
        """Whether requests are served, and if not, why."""

    def _running_thread(self) -> LoopThread:
        if self._thread is None:
            name = self._own_name
            raise BatcherClosedError(
                f"the {name} was not started; use `with {name}` or `{name}.start()`"
            )
        return self._thread


def _abandon(thread: LoopThread, batcher: AnyBatcher) -> None:
    """Nobody holds the batcher any more, or the interpreter exits."""
    thread.stop(after=lambda: batcher.close(drain=False), patience=_EXIT_PATIENCE)


_EXIT_PATIENCE = 10.0
"""Seconds that an exiting interpreter waits for what is under way."""

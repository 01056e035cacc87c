"""`ThreadsafeBatcher` and `BlockingCalls`: the calls of a batcher for other threads.

`ThreadsafeBatcher` returns futures; its batcher runs on a caller's event loop. `BlockingCalls`
wait for results; their batcher has an event loop and a thread of its own.
"""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar, overload

from typing_extensions import Unpack, override

from ...params import SamplingParams
from ..any_batcher import AnyBatcher
from ..call import Messages, Prompt, Prompts
from ..completion import Completion
from ..lifecycle import not_copied
from ..model_info import ModelInfo
from ..options import (
    ChatOptions,
    CompleteOptions,
    EmbedOptions,
    GenerateOptions,
    PrefixOptions,
    ScoreOptions,
    TokenizeOptions,
    TypedChatOptions,
    TypedCompleteOptions,
    TypedGenerateOptions,
)
from ..prefix_info import PrefixInfo
from ..scores import Embedding, Score
from ..statistics import BatcherStatistics, Health
from ..telemetry import Handler
from .composed_calls import BlockingComposedCalls, ThreadsafeComposedCalls
from .loop_thread import LoopThread
from .remote_calls import RemoteCalls
from .streams import BlockingStream, ThreadsafeStream

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BlockingCalls", "ThreadsafeBatcher"]

B = TypeVar("B", bound=AnyBatcher)
T = TypeVar("T")


class ThreadsafeBatcher(ThreadsafeComposedCalls):
    """The calls of a batcher from any thread and any event loop, as `Batcher.threadsafe`.

        batcher.threadsafe.generate(prompt).result()                       # in a thread
        await asyncio.wrap_future(batcher.threadsafe.generate(prompt))     # in another loop
        async for piece in batcher.threadsafe.stream(prompt): ...          # in another loop
        for piece in batcher.threadsafe.stream(prompt): ...                # in a thread

    Arguments are those of `Batcher`. No call waits. Cancelling a future cancels its request. A call
    raises BatcherClosedError before `start`, after `close` and in a fork; all other errors are
    raised by the future. `result` on the batcher's own event loop would deadlock, so it raises
    InvalidRequestError. The batcher also uses the threads of `asyncio.to_thread`: do not block all
    of them.
    """

    def __init__(self, batcher: AnyBatcher, calls: Callable[[], RemoteCalls]) -> None:
        """Make the calls of `batcher`. calls: returns the `RemoteCalls` of its loop, or raises."""
        self._batcher = batcher
        self._calls = calls

    @overload
    def generate(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedCompleteOptions],
    ) -> Future[Completion[T]]: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedCompleteOptions],
    ) -> Future[list[Completion[T]]]: ...

    @overload
    def generate(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[CompleteOptions],
    ) -> Future[Completion]: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        params: SamplingParams | None = None,
        **options: Unpack[CompleteOptions],
    ) -> Future[list[Completion]]: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        params: SamplingParams | None = None,
        **options: Unpack[CompleteOptions],
    ) -> Any:
        """Continue a prompt, or each of a list. `AnyBatcher.generate` has the arguments."""
        return self._calls().run(partial(self._batcher.generate, prompt, params, **options))

    @overload
    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedGenerateOptions],
    ) -> ThreadsafeStream[T]: ...

    @overload
    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> ThreadsafeStream: ...

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> ThreadsafeStream:
        """Continue a prompt in pieces. `AnyBatcher.generate` has the arguments."""
        stream = self._batcher.stream(prompt, params, **options)
        return ThreadsafeStream(stream, self._calls())

    @overload
    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedChatOptions],
    ) -> Future[Completion[T]]: ...

    @overload
    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Future[Completion]: ...

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Any:
        """Return the assistant's next turn. `AnyBatcher.chat` has the arguments."""
        return self._calls().run(partial(self._batcher.chat, messages, params, **options))

    @overload
    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedChatOptions],
    ) -> ThreadsafeStream[T]: ...

    @overload
    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> ThreadsafeStream: ...

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> ThreadsafeStream:
        """Stream the assistant's next turn. `AnyBatcher.chat` has the arguments."""
        stream = self._batcher.stream_chat(messages, params, **options)
        return ThreadsafeStream(stream, self._calls())

    def tokenize(
        self, content: Prompt | Messages, **options: Unpack[TokenizeOptions]
    ) -> Future[tuple[int, ...]]:
        """Return the token ids that `generate` or `chat` would continue."""
        return self._calls().run(partial(self._batcher.tokenize, content, **options))

    def detokenize(self, token_ids: Sequence[int]) -> Future[str]:
        """Return the text of token ids, special tokens included."""
        return self._calls().run(partial(self._batcher.detokenize, token_ids))

    def token_bytes(self, token_ids: Sequence[int]) -> Future[list[bytes]]:
        """Return the bytes that each token adds to a text, after another token."""
        return self._calls().run(partial(self._batcher.token_bytes, token_ids))

    def score(
        self, prompt: Prompt, continuations: Sequence[Prompt], **options: Unpack[ScoreOptions]
    ) -> Future[list[Score]]:
        """Return how likely each continuation is. `AnyBatcher.score` has the arguments."""
        return self._calls().run(partial(self._batcher.score, prompt, continuations, **options))

    @overload
    def embed(  # type: ignore[overload-overlap]
        self, texts: str, **options: Unpack[EmbedOptions]
    ) -> Future[Embedding]: ...

    @overload
    def embed(
        self, texts: Sequence[Prompt], **options: Unpack[EmbedOptions]
    ) -> Future[list[Embedding]]: ...

    def embed(self, texts: Any, **options: Unpack[EmbedOptions]) -> Any:
        """Return each text as one vector. `AnyBatcher.embed` has the arguments."""
        return self._calls().run(partial(self._batcher.embed, texts, **options))

    def add_prefix(self, prefix: Prompt, **options: Unpack[PrefixOptions]) -> Future[PrefixInfo]:
        """Keep the KV of a shared beginning. `AnyBatcher.add_prefix` has the arguments."""
        return self._calls().run(partial(self._batcher.add_prefix, prefix, **options))

    def remove_prefix(self, name: str, namespace: str | None = None) -> Future[None]:
        """Undo one `add_prefix`."""
        return self._calls().run(partial(self._batcher.remove_prefix, name, namespace))

    def model_info(self) -> Future[ModelInfo]:
        """Return a description of the model that is served now."""
        return self._calls().run(self._batcher.model_info)

    def prefixes(self) -> tuple[PrefixInfo, ...]:
        """Return all prefixes that are kept, at once."""
        found = self._batcher.prefixes()
        assert isinstance(found, tuple)
        return found


class BlockingCalls(BlockingComposedCalls, Generic[B]):
    """Base of batchers with an event loop and a thread of their own. Methods wait and return.

    The first call starts the batcher, unless `start` or `with` has. Calls of several threads are
    served at the same time. A call that is interrupted (Ctrl-C) cancels its request. Without a
    `close`, the batcher is closed, without draining, when it is garbage-collected or the
    interpreter exits.
    """

    _own_name: ClassVar[str]
    """The name of the object in error messages."""

    @classmethod
    def over(cls, batcher: B) -> Self:
        """Make blocking calls of a batcher that is not started. Do not use the batcher directly
        afterwards.
        """
        self = cls.__new__(cls)
        self._configure(batcher)
        return self

    def _configure(self, batcher: B) -> None:
        self._batcher = batcher
        self._starting = threading.Lock()
        self._thread: LoopThread | None = None
        self._has_started = False
        self._abandon: weakref.finalize[..., BlockingCalls[B]] | None = None

    def start(self) -> None:
        """Begin to serve; do nothing if started. Raises the errors of `AnyBatcher.start`."""
        with self._starting:
            if self._thread is None:
                self._thread = LoopThread("pybatcher-loop", owner=self._own_name)
                self._abandon = weakref.finalize(self, _abandon, self._thread, self._batcher)
        try:
            self._thread.call(self._batcher.start())
        except BaseException:
            self.close(drain=False)
            raise
        self._has_started = True

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Finish or fail the requests in flight (`AnyBatcher.close`), and end the thread.

        Closing again does nothing.
        """
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
        """Close; drain unless an exception is under way. Do nothing in a fork of the process."""
        if self._thread is None or not self._thread.is_forked:
            self.close(drain=exc_type is None)

    @overload
    def generate(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedCompleteOptions],
    ) -> Completion[T]: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedCompleteOptions],
    ) -> list[Completion[T]]: ...

    @overload
    def generate(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[CompleteOptions],
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        params: SamplingParams | None = None,
        **options: Unpack[CompleteOptions],
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        params: SamplingParams | None = None,
        **options: Unpack[CompleteOptions],
    ) -> Any:
        """Continue a prompt, or each of a list. `AnyBatcher.generate` has the arguments."""
        return self._running_thread().call(self._batcher.generate(prompt, params, **options))

    @overload
    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedGenerateOptions],
    ) -> BlockingStream[T]: ...

    @overload
    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> BlockingStream: ...

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> BlockingStream:
        """Continue a prompt in pieces: `for piece in batcher.stream(prompt)`."""
        thread = self._running_thread()
        return BlockingStream(self, thread, self._batcher.stream(prompt, params, **options))

    @overload
    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedChatOptions],
    ) -> Completion[T]: ...

    @overload
    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion: ...

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Any:
        """Return the assistant's next turn. `AnyBatcher.chat` has the arguments."""
        return self._running_thread().call(self._batcher.chat(messages, params, **options))

    @overload
    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedChatOptions],
    ) -> BlockingStream[T]: ...

    @overload
    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> BlockingStream: ...

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> BlockingStream:
        """Stream the assistant's next turn. `AnyBatcher.chat` has the arguments."""
        thread = self._running_thread()
        return BlockingStream(self, thread, self._batcher.stream_chat(messages, params, **options))

    def tokenize(
        self, content: Prompt | Messages, **options: Unpack[TokenizeOptions]
    ) -> tuple[int, ...]:
        """Return the token ids that `generate` or `chat` would continue."""
        return self._running_thread().call(self._batcher.tokenize(content, **options))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included."""
        return self._running_thread().call(self._batcher.detokenize(token_ids))

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """Return the bytes that each token adds to a text, after another token."""
        return self._running_thread().call(self._batcher.token_bytes(token_ids))

    def score(
        self, prompt: Prompt, continuations: Sequence[Prompt], **options: Unpack[ScoreOptions]
    ) -> list[Score]:
        """Return how likely each continuation is. `AnyBatcher.score` has the arguments."""
        return self._running_thread().call(self._batcher.score(prompt, continuations, **options))

    @overload
    def embed(  # type: ignore[overload-overlap]
        self, texts: str, **options: Unpack[EmbedOptions]
    ) -> Embedding: ...

    @overload
    def embed(
        self, texts: Sequence[Prompt], **options: Unpack[EmbedOptions]
    ) -> list[Embedding]: ...

    def embed(self, texts: Any, **options: Unpack[EmbedOptions]) -> Any:
        """Return each text as one vector. `AnyBatcher.embed` has the arguments."""
        return self._running_thread().call(self._batcher.embed(texts, **options))

    def add_prefix(self, prefix: Prompt, **options: Unpack[PrefixOptions]) -> PrefixInfo:
        """Keep the KV of a shared beginning. `AnyBatcher.add_prefix` has the arguments."""
        return self._running_thread().call(self._batcher.add_prefix(prefix, **options))

    def remove_prefix(self, name: str, namespace: str | None = None) -> None:
        """Undo one `add_prefix`."""
        self._running_thread().call(self._batcher.remove_prefix(name, namespace))

    def model_info(self) -> ModelInfo:
        """Return a description of the model that is served now."""
        return self._running_thread().call(self._batcher.model_info())

    @abstractmethod
    def prefixes(self) -> tuple[PrefixInfo, ...]:
        """Return all prefixes that are kept."""

    @abstractmethod
    def statistics(self) -> BatcherStatistics:
        """Return the counts since the start. Raises BatcherClosedError before `start`."""

    @abstractmethod
    def health(self) -> Health:
        """Return whether requests are served, and if not, why."""

    def attach(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event from now on. Return a function that detaches it.

        The batcher's own thread calls the handler. It must not call this batcher's waiting methods,
        which wait for that thread. After a detach from another thread, an event under way may still
        be delivered. Raises ConfigError for an object that cannot be called with one event.
        """
        return self._batcher.attach(handler)

    @property
    def model_name(self) -> str:
        """The name of the model, for display. Raises BatcherClosedError before `start`."""
        return self._batcher.model_name

    def __reduce__(self) -> NoReturn:
        raise not_copied(self._own_name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._batcher!r}>"

    @override
    def _asked(self) -> B:
        return self._batcher

    @override
    def _running_thread(self) -> LoopThread:
        if not self._has_started:
            self.start()
        assert self._thread is not None
        return self._thread


def _abandon(thread: LoopThread, batcher: AnyBatcher) -> None:
    """End a batcher that was garbage-collected, or that is open when the interpreter exits."""
    thread.stop(after=lambda: batcher.close(drain=False), timeout=_EXIT_TIMEOUT)


_EXIT_TIMEOUT = 10.0
"""Seconds that an exiting interpreter waits for the thread to end."""

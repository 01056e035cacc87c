"""The calls of `ComposedCalls` for other threads: `map`, `act` and `trim`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from typing_extensions import Unpack

from ...params import SamplingParams
from ..completion import Completion
from ..composed.map_results import ItemErrors, Progress, map_work
from ..composed.tool_loop import Acted, Tool, ToolLoop, run_tool_here
from ..options import ActOptions, MapOptions, TemplateOptions, TypedActOptions, TypedMapOptions
from .loop_thread import LoopThread
from .remote_calls import RemoteCalls
from .result_streams import BlockingResultStream, ThreadsafeResultStream

if TYPE_CHECKING:
    from ..any_batcher import AnyBatcher

__all__ = ["BlockingComposedCalls", "ThreadsafeComposedCalls"]

T = TypeVar("T")
Item = TypeVar("Item")
M = TypeVar("M", bound=Mapping[str, Any])


class ThreadsafeComposedCalls:
    """Base of `ThreadsafeBatcher`."""

    _batcher: AnyBatcher
    _calls: Callable[[], RemoteCalls]

    @overload
    def map(
        self,
        items: Iterable[Item],
        params: SamplingParams | None = None,
        *,
        at_once: int = 32,
        errors: ItemErrors = "return",
        progress: Progress | None = None,
        json_schema: type[T],
        **options: Unpack[TypedMapOptions],
    ) -> ThreadsafeResultStream[Item, T]: ...

    @overload
    def map(
        self,
        items: Iterable[Item],
        params: SamplingParams | None = None,
        *,
        at_once: int = 32,
        errors: ItemErrors = "return",
        progress: Progress | None = None,
        **options: Unpack[MapOptions],
    ) -> ThreadsafeResultStream[Item]: ...

    def map(
        self,
        items: Iterable[Any],
        params: SamplingParams | None = None,
        *,
        at_once: int = 32,
        errors: ItemErrors = "return",
        progress: Progress | None = None,
        **options: Unpack[MapOptions],
    ) -> ThreadsafeResultStream[Any, Any]:
        """Generate or chat for each item. `AnyBatcher.map` has the arguments.

        The thread or the loop that reads the results takes the items too.
        """
        work = map_work(self._batcher, items, params, at_once, errors, progress, options)
        return ThreadsafeResultStream(work, self._calls())

    @overload
    def act(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool],
        params: SamplingParams | None = None,
        *,
        max_turns: int = 10,
        json_schema: type[T],
        **options: Unpack[TypedActOptions],
    ) -> Future[Acted[T]]: ...

    @overload
    def act(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool],
        params: SamplingParams | None = None,
        *,
        max_turns: int = 10,
        **options: Unpack[ActOptions],
    ) -> Future[Acted]: ...

    def act(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool],
        params: SamplingParams | None = None,
        *,
        max_turns: int = 10,
        **options: Unpack[ActOptions],
    ) -> Future[Any]:
        """Chat and run the tools that the model calls. `AnyBatcher.act` has the arguments."""
        asked = partial(self._batcher.act, messages, tools, params, max_turns=max_turns, **options)
        return self._calls().run(asked)

    def trim(
        self, messages: Sequence[M], room: int, **options: Unpack[TemplateOptions]
    ) -> Future[list[M]]:
        """Return the messages without the oldest turns. `AnyBatcher.trim` has the arguments."""
        return self._calls().run(partial(self._batcher.trim, messages, room, **options))


class BlockingComposedCalls(ABC):
    """Base of `BlockingCalls`."""

    @overload
    def map(
        self,
        items: Iterable[Item],
        params: SamplingParams | None = None,
        *,
        at_once: int = 32,
        errors: ItemErrors = "return",
        progress: Progress | None = None,
        json_schema: type[T],
        **options: Unpack[TypedMapOptions],
    ) -> BlockingResultStream[Item, T]: ...

    @overload
    def map(
        self,
        items: Iterable[Item],
        params: SamplingParams | None = None,
        *,
        at_once: int = 32,
        errors: ItemErrors = "return",
        progress: Progress | None = None,
        **options: Unpack[MapOptions],
    ) -> BlockingResultStream[Item]: ...

    def map(
        self,
        items: Iterable[Any],
        params: SamplingParams | None = None,
        *,
        at_once: int = 32,
        errors: ItemErrors = "return",
        progress: Progress | None = None,
        **options: Unpack[MapOptions],
    ) -> BlockingResultStream[Any, Any]:
        """Generate or chat for each item: `for result in batcher.map(items)`.

        `AnyBatcher.map` has the arguments. Items are taken, and `progress` is called, on the thread
        that reads the results, so both may block.
        """
        work = map_work(self._asked(), items, params, at_once, errors, progress, options)
        return BlockingResultStream(self, self._running_thread(), work)

    @overload
    def act(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool],
        params: SamplingParams | None = None,
        *,
        max_turns: int = 10,
        json_schema: type[T],
        **options: Unpack[TypedActOptions],
    ) -> Acted[T]: ...

    @overload
    def act(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool],
        params: SamplingParams | None = None,
        *,
        max_turns: int = 10,
        **options: Unpack[ActOptions],
    ) -> Acted: ...

    def act(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool],
        params: SamplingParams | None = None,
        *,
        max_turns: int = 10,
        **options: Unpack[ActOptions],
    ) -> Acted[Any]:
        """Chat, run the tools that the model calls, and chat again until it answers.

        `AnyBatcher.act` has the arguments. Tools run on the calling thread, `async` ones on the
        batcher's event loop. `timeout` is checked between them.
        """
        loop = ToolLoop(messages, tools, params, max_turns, options)
        thread = self._running_thread()
        while (own := loop.next_options()) is not None:
            turn: Completion = thread.call(self._asked().chat(loop.messages, params, **own))
            for call in loop.take(turn):
                loop.answer(call, run_tool_here(loop.functions, call, thread.call))
        return loop.result()

    def trim(self, messages: Sequence[M], room: int, **options: Unpack[TemplateOptions]) -> list[M]:
        """Return the messages without the oldest turns. `AnyBatcher.trim` has the arguments."""
        return self._running_thread().call(self._asked().trim(messages, room, **options))

    @abstractmethod
    def _asked(self) -> AnyBatcher:
        """Return the batcher that serves the calls."""

    @abstractmethod
    def _running_thread(self) -> LoopThread:
        """Return the thread of the event loop; start the batcher if nobody has.

        Raises the errors of `start`.
        """

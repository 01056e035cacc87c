"""`ResultStream`: the results of a call for each item of an iterable, several at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal

from typing_extensions import TypeVar, override

from ...errors import (
    BatcherClosedError,
    EngineFailedError,
    InvalidRequestError,
    PybatcherError,
    QueueFullError,
)
from ...errors.checks import REQUEST
from ...params import SamplingParams
from ..arguments import check_timeout, is_chat, several_prompts
from ..completion import Completion
from ..options import ChatOptions, CompleteOptions, MapOptions, check_names

if TYPE_CHECKING:
    from typing import Self

    from ..any_batcher import AnyBatcher

__all__ = ["ItemErrors", "MapResult", "MapWork", "Progress", "ResultStream", "map_work"]

Item = TypeVar("Item", default=Any)
T = TypeVar("T", default=Any)

ItemErrors = Literal["return", "raise"]
"""The treatment of an item whose call fails: its error is returned, or ends the map."""

Progress = Callable[[int, int | None], object]
"""Called with the number of results so far, and the number of items or None if it is unknown."""

_ITEM = "a prompt, messages, or a dict of arguments with either `prompt` or `messages`"
_ITEMS = f"an iterable whose items are each {_ITEM}"
_MOST_ARGUMENTS = 256
_MOST_AT_ONCE = 2**16
_SHORTEST_WAIT, _LONGEST_WAIT = 0.01, 1.0
"""Seconds until an item that found the queue full tries again."""


@dataclass(frozen=True, slots=True)
class MapResult(Generic[Item, T]):
    """The result for one item of `map`: a completion, or the error of its call.

    index: the position of the item, from 0 on.
    item: the item itself.
    completion: the output; None if the call failed.
    error: the error of the call; None if it succeeded.
    """

    index: int
    item: Item
    completion: Completion[T] | None = None
    error: PybatcherError | None = None

    def result(self) -> Completion[T]:
        """Return the completion, or raise the error."""
        if self.completion is None:
            assert self.error is not None
            raise self.error
        return self.completion


class _EngineGoneError(Exception):
    """Ends the whole map; its cause is the EngineFailedError of an engine that failed for good."""


def _read_item(item: object) -> tuple[object, dict[str, Any], bool]:
    """Return the prompt or the messages, the item's own arguments, and True for messages.

    Raises InvalidRequestError.
    """
    with REQUEST.reading("item", item, _ITEM):
        if not isinstance(item, Mapping):
            is_messages = is_chat(item)
            if not is_messages and several_prompts(item) is not None:
                raise REQUEST.bad("item", item, f"{_ITEM}; several prompts are several items")
            return item, {}, is_messages
        own = dict(REQUEST.pairs("item", item, _MOST_ARGUMENTS, _ITEM))
        own.pop("id", None)  # the caller's own name of the item
        is_messages = "messages" in own
        if is_messages == ("prompt" in own):
            raise REQUEST.bad("item", item, _ITEM)
    content = own.pop("messages" if is_messages else "prompt")
    params = {"params": own.pop("params")} if "params" in own else {}
    check_names(own, ChatOptions if is_messages else CompleteOptions)
    if not is_messages and several_prompts(content) is not None:
        raise InvalidRequestError(
            "prompt is a list of prompts; several prompts are several items", field="prompt"
        )
    return content, {**params, **own}, is_messages


class _Running(Generic[Item, T]):
    """The calls in flight of a map, on the event loop of the batcher."""

    def __init__(self, call: Callable[[Item], Coroutine[Any, Any, Completion[T]]]) -> None:
        self._call = call
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[asyncio.Task[Completion[T]], tuple[int, Item]] = {}
        self._results: deque[MapResult[Item, T]] = deque()
        self._failure: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None
        self._closed = False

    def start(self, index: int, item: Item) -> None:
        """Begin the call of an item; do nothing once closed."""
        if self._closed:
            return
        self._loop = asyncio.get_running_loop()
        task = self._loop.create_task(self._call(item))
        self._tasks[task] = index, item
        task.add_done_callback(self._end)

    async def next(self) -> MapResult[Item, T] | None:
        """Return the next result; None once closed. Raises an error that ends the map."""
        while not (self._results or self._closed or self._failure):
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._results:
            return self._results.popleft()
        if self._failure is not None and not self._closed:
            raise self._failure
        return None

    def close(self) -> None:
        """Cancel all calls in flight, and wake the reader."""
        self._closed = True
        self._results.clear()
        for task in self._tasks:
            task.cancel()
        self._wake()

    def abandon(self) -> None:
        """Do what `close` does, from any thread."""
        if self._loop is not None and not self._closed:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.close)

    async def ended(self) -> None:
        """Return when the cancelled calls have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[Completion[T]]) -> None:
        index, item = self._tasks.pop(task)
        if task.cancelled():
            if not self._closed:
                self._failure = BatcherClosedError("a call of the map was cancelled")
        elif (error := task.exception()) is None:
            self._results.append(MapResult(index, item, task.result()))
        elif isinstance(error, PybatcherError) and not isinstance(error, BatcherClosedError):
            self._results.append(MapResult(index, item, None, error))
        else:
            self._failure = error.__cause__ if isinstance(error, _EngineGoneError) else error
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class MapWork(Generic[Item, T]):
    """The side of a map that its reader has: it takes items, and counts results.

    call: completes an item. `AnyBatcher.map` documents the other arguments. Raises
    InvalidRequestError.
    """

    def __init__(
        self,
        call: Callable[[Item], Coroutine[Any, Any, Completion[T]]],
        items: Iterable[Item],
        at_once: object,
        errors: object,
        progress: object,
    ) -> None:
        self.running = _Running(call)
        self._at_once = REQUEST.whole("at_once", at_once, 1, _MOST_AT_ONCE)
        self._raises = REQUEST.choice("errors", errors, ("return", "raise")) == "raise"
        self._progress: Progress | None = REQUEST.function("progress", progress)
        self._n_in_flight = 0
        self._n_results = 0
        with REQUEST.reading("items", items, _ITEMS):
            if isinstance(items, (str, bytes, bytearray, Mapping)) or not isinstance(
                items, Iterable
            ):
                raise REQUEST.bad("items", items, _ITEMS)
            self._n_items = len(items) if isinstance(items, Sized) else None
            self._items: Iterator[tuple[int, Item]] = enumerate(iter(items))

    def begin_more(self, soon: Callable[[Callable[[], None]], object]) -> bool:
        """Begin the calls of further items, and return whether a result is to come.

        soon: calls a function on the batcher's event loop.
        """
        for index, item in islice(self._items, self._at_once - self._n_in_flight):
            self._n_in_flight += 1
            soon(partial(self.running.start, index, item))
        return self._n_in_flight > 0

    def deliver(self, result: MapResult[Item, T]) -> MapResult[Item, T]:
        """Count a result and return it, or raise its error."""
        self._n_in_flight -= 1
        self._n_results += 1
        if self._progress is not None:
            self._progress(self._n_results, self._n_items)
        if result.error is not None and self._raises:
            result.error.add_note(f"raised for the item with index {result.index}")
            raise result.error
        return result

    def end(self) -> None:
        """Take no more items."""
        self._items = iter(())
        self._n_in_flight = 0

    def __del__(self) -> None:
        # The garbage collector may run on any thread.
        with suppress(AttributeError):  # the constructor has raised
            self.running.abandon()


def map_work(
    batcher: AnyBatcher,
    items: Iterable[Any],
    params: SamplingParams | None,
    at_once: object,
    errors: object,
    progress: object,
    options: Mapping[str, Any],
) -> MapWork[Any, Any]:
    """Return the work of `AnyBatcher.map`, which documents the arguments."""
    check_names(options, MapOptions)
    return MapWork(partial(_complete, batcher, params, options), items, at_once, errors, progress)


async def _complete(
    batcher: AnyBatcher, params: SamplingParams | None, options: Mapping[str, Any], item: object
) -> Completion:
    """Return the completion of one item of `AnyBatcher.map`.

    An item that finds the queue full tries again until its own timeout has passed. Raises the
    errors of the call, and BatcherClosedError.
    """
    content, own, is_messages = _read_item(item)
    params = own.pop("params", params)
    own = {**options, **own}
    timeout = check_timeout(own.get("timeout"))
    call: Any = batcher.chat if is_messages else batcher.generate
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            made: Completion = await call(content, params, **own)
            return made
        except QueueFullError as error:
            wait = min(max(error.retry_after, _SHORTEST_WAIT), _LONGEST_WAIT)
            if timeout is not None:
                own["timeout"] = timeout - (loop.time() + wait - began)
                if own["timeout"] <= 0:
                    raise
        except EngineFailedError as error:
            with suppress(PybatcherError):
                if (await batcher.health()).status == "failed":
                    raise _EngineGoneError from error
            raise
        await asyncio.sleep(wait)


class ResultStream(AsyncIterator[MapResult[Item, T]]):
    """The results of `map`: `async for result in batcher.map(items)`.

    Reading a result begins the calls of further items, so that nothing is computed for a reader
    who is gone, except what is in flight. The calls in flight are cancelled when the stream is
    closed (`aclose`, or the end of `async with`), when the task that waits for a result is
    cancelled, and when an unfinished stream is garbage-collected.
    """

    def __init__(self, work: MapWork[Item, T]) -> None:
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first result
        self._is_read = False

    @override
    async def __anext__(self) -> MapResult[Item, T]:
        if self._is_read:
            raise RuntimeError("another task waits for the next result of this map")
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise InvalidRequestError(
                "this map was begun in another event loop; read it there, or use "
                "`batcher.threadsafe`, or a BlockingBatcher"
            )
        self._loop = loop
        self._is_read = True
        try:
            has_more = self._work.begin_more(_now)
            result = await self._work.running.next() if has_more else None
            if result is None:
                raise StopAsyncIteration
            return self._work.deliver(result)
        except BaseException:
            await self.aclose()
            raise
        finally:
            self._is_read = False

    async def aclose(self) -> None:
        """Begin no more calls, cancel those in flight and wait for their end."""
        self._work.end()
        self._work.running.close()
        await self._work.running.ended()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def _now(function: Callable[[], None]) -> None:
    function()

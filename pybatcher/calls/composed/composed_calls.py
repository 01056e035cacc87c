"""`ComposedCalls`: the calls of a batcher that are made of its other calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from typing_extensions import Unpack

from ...params import SamplingParams
from ..options import ActOptions, MapOptions, TemplateOptions, TypedActOptions, TypedMapOptions
from .map_results import ItemErrors, Progress, ResultStream, map_work
from .tool_loop import Acted, Tool, ToolLoop, act
from .trimming import trim

if TYPE_CHECKING:
    from ..any_batcher import AnyBatcher

__all__ = ["ComposedCalls"]

T = TypeVar("T")
Item = TypeVar("Item")
M = TypeVar("M", bound=Mapping[str, Any])


class ComposedCalls:
    """Base of `AnyBatcher` with the calls that chat or generate several times."""

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
    ) -> ResultStream[Item, T]: ...

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
    ) -> ResultStream[Item]: ...

    def map(
        self,
        items: Iterable[Any],
        params: SamplingParams | None = None,
        *,
        at_once: int = 32,
        errors: ItemErrors = "return",
        progress: Progress | None = None,
        **options: Unpack[MapOptions],
    ) -> ResultStream[Any, Any]:
        """Generate or chat for each item, several at a time, and return results as they come.

            async with batcher.map(prompts, max_tokens=64) as results:
                async for one in results:
                    print(one.index, one.error or one.completion)

        items: an iterable, such as a generator that reads a file. Each item is a prompt (a text or
            token ids), the messages of a chat, or a dict of arguments with `prompt` or `messages`,
            whose other entries go before `params` and `options`; an entry `id` is your own name
            of the item, and has no effect. Items are taken as results are
            read, so there are never more than `at_once` of them in memory. The iterable is read on
            the event loop and should not block.
        at_once: the most calls in flight at a time, from 1 to 65536. More than `n_parallel` keep
            the engine busy.
        errors: "return" gives a result with `error` for an item whose call fails; "raise" ends the
            map with the first error.
        progress: called with the number of results so far and the number of items (None if the
            iterable has no `len`) before each result is returned.
        timeout: of each item, in seconds from its first try.
        options: those of `generate` and `chat`. An option that only chats have is an error of an
            item that is a prompt.

        Results come in order of completion; `MapResult.index` is the position of the item. An item
        that finds the queue full tries again. An error of `items` itself, BatcherClosedError and
        an engine that has failed for good end the map in any case; finished results come first.
        Leaving the `async with` block cancels the calls in flight. Raises InvalidRequestError for
        wrong arguments at once.
        """
        return ResultStream(
            map_work(cast("AnyBatcher", self), items, params, at_once, errors, progress, options)
        )

    @overload
    async def act(
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
    async def act(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool],
        params: SamplingParams | None = None,
        *,
        max_turns: int = 10,
        **options: Unpack[ActOptions],
    ) -> Acted: ...

    async def act(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool],
        params: SamplingParams | None = None,
        *,
        max_turns: int = 10,
        **options: Unpack[ActOptions],
    ) -> Acted[Any]:
        """Chat, run the tools that the model calls, and chat again until it answers.

            answer, messages = await batcher.act([{"role": "user", "content": "..."}], [weather])

        tools: Python functions with type hints and docstrings, or pairs of a definition as in
            OpenAI's API and the function that it describes. Functions may be `async`; others run on
            a thread of their own, so that they do not stop the event loop. Functions get the
            arguments that the model chose, as keywords, and return a text or a JSON value. The
            model gets the text of an exception as the result, and may try again.
        max_turns: the most turns of the model. Calls of the last turn are run too, so that
            `messages` can be continued; `completion.finish_reason` is then "tool_calls".
        timeout: seconds for all turns and tools together. If it passes while a tool runs,
            DeadlineExceededError is raised, and the thread of the tool goes on until it ends.
        tool_choice: as in `chat`. A call that it requires is required in the first turn only.
        options: those of `chat`, with `n` = 1.

        Returns the model's last turn and all messages, as a named tuple; `messages` itself is
        unchanged. The calls of a turn are run one after the other. A call that `max_tokens` cut is
        not run. Cancelling ends the request, or the `async` tool, under way. Raises the errors of
        `chat`, and InvalidRequestError for tools without a function.
        """
        loop = ToolLoop(messages, tools, params, max_turns, options)
        return await act(cast("AnyBatcher", self).chat, params, loop)

    async def trim(
        self, messages: Sequence[M], room: int, **options: Unpack[TemplateOptions]
    ) -> list[M]:
        """Return the messages without the oldest turns, as many as needed to make room.

            messages = await batcher.trim(messages, room=500)
            answer = await batcher.chat(messages, max_tokens=500)

        room: the positions of a sequence that are left for the answer, at least 1.
        options: those of a chat that its template sees, such as `tools`, which take positions too.

        A turn is a user's message with everything up to the next one, so that calls stay with
        their results. Messages of the roles system and developer, and the last turn, are never
        dropped. A chat that fits is returned unchanged, as a new list. Raises RequestTooLongError
        if the last turn alone is too long, InvalidRequestError, BatcherClosedError.
        """
        return await trim(cast("AnyBatcher", self), messages, room, options)

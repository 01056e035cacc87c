"""`ToolLoop`: a chat whose tools are run until the model answers. `run_tool`: runs one call."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple

from typing_extensions import TypeVar

from ...errors import DeadlineExceededError, InvalidRequestError
from ...errors.checks import REQUEST, plain_int, type_name
from ...params import SamplingParams
from ...text.output import MAX_TOOLS, ToolSpec, read_tool_choice, read_tools
from ...text.tool_call import ToolCall
from ..arguments import check_timeout
from ..completion import Completion
from ..options import ActOptions, check_names
from ..threads.loop_thread import on_own_thread
from .trimming import check_messages

__all__ = ["Acted", "Tool", "ToolLoop", "act", "run_tool", "run_tool_here"]

T = TypeVar("T", default=Any)

Tool = Callable[..., Any] | tuple[Mapping[str, Any], Callable[..., Any]]
"""A Python function, or a pair: the definition of a tool as in OpenAI's API, and its function."""

Functions = Mapping[str, Callable[..., Any]]
"""The functions of tools by the tools' names."""

_MOST_TURNS = 1000
_TOOL = "a function, or a pair (definition, function)"
_TOOLS = f"a list of at most {MAX_TOOLS} tools, each {_TOOL}"


class Acted(NamedTuple, Generic[T]):
    """The end of a chat whose tools were run: `answer, messages = await batcher.act(...)`.

    completion: the last turn of the model. Its `finish_reason` is "tool_calls" if `max_turns` ended
        the chat.
    messages: the given messages, the turns of the model, and the results of its calls. A further
        message can follow, or another `act` with them.
    """

    completion: Completion[T]
    messages: list[Mapping[str, Any]]


class ToolLoop:
    """The state of `AnyBatcher.act`, which documents the arguments. Its user chats and runs calls.

        while (options := loop.next_options()) is not None:
            for call in loop.take(chat(loop.messages, params, **options)):
                loop.answer(call, run_tool_here(loop.functions, call))
        return loop.result()

    Raises InvalidRequestError.
    """

    def __init__(
        self,
        messages: object,
        tools: object,
        params: SamplingParams | None,
        max_turns: object,
        options: Mapping[str, Any],
    ) -> None:
        check_names(options, ActOptions)
        self._options = dict(options)
        self._n_left = REQUEST.whole("max_turns", max_turns, 1, _MOST_TURNS)
        self._tools = _read(tools)
        self.functions: Functions = {
            tool.name: tool.function for tool in self._tools if tool.function is not None
        }
        self.messages = check_messages(messages)
        _check_one_output(params, options)
        self._last: Completion | None = None
        self._timeout = check_timeout(self._options.pop("timeout", None))
        self._end = None if self._timeout is None else time.monotonic() + self._timeout

    def next_options(self) -> dict[str, Any] | None:
        """Return the keywords of the next chat; None at the end.

        Raises DeadlineExceededError if the calls have used up the timeout.
        """
        if not self._n_left or (
            self._last is not None and self._last.finish_reason != "tool_calls"
        ):
            return None
        self._n_left -= 1
        return {**self._options, "tools": self._tools, "timeout": self.seconds_left()}

    def seconds_left(self) -> float | None:
        """Return the rest of the timeout; None without one. Raises DeadlineExceededError."""
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise self.too_late()
        return left

    def too_late(self) -> DeadlineExceededError:
        """Return the error of a timeout that ran out while a tool ran."""
        return DeadlineExceededError(
            f"the timeout of {self._timeout:g} s ran out while the tools ran; the model has no "
            "answer yet: raise timeout, or make the tools faster",
            field="timeout",
        )

    def take(self, turn: Completion) -> tuple[ToolCall, ...]:
        """Add a turn of the model, and return its calls; none if it has answered."""
        is_first, self._last = self._last is None, turn
        self.messages.append(turn.message)
        if turn.finish_reason != "tool_calls":  # a call that was cut must not be run
            return ()
        if is_first:
            self._options["tool_choice"] = self._choice_of_later_turns()
        return turn.tool_calls

    def answer(self, call: ToolCall, result: str) -> None:
        """Add the result of a call."""
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def result(self) -> Acted:
        """Return the last turn and all messages."""
        assert self._last is not None
        return Acted(self._last, self.messages)

    def _choice_of_later_turns(self) -> Any:
        """Return `tool_choice` without a call that it requires, which every turn would repeat."""
        given = self._options.get("tool_choice")
        choice = read_tool_choice(given, self._tools)
        if choice.mode != "required":
            return given
        if isinstance(given, Mapping) and given.get("type") == "allowed_tools":
            tools = [{"type": "function", "name": name} for name in choice.names]
            return {"type": "allowed_tools", "mode": "auto", "tools": tools}
        return "auto"


async def act(
    chat: Callable[..., Awaitable[Completion]], params: SamplingParams | None, loop: ToolLoop
) -> Acted:
    """Chat and run the calls, turn by turn, and return the end. chat: `AnyBatcher.chat`."""
    while (options := loop.next_options()) is not None:
        for call in loop.take(await chat(loop.messages, params, **options)):
            left = loop.seconds_left()
            try:
                async with asyncio.timeout(left):
                    result = await run_tool(loop.functions, call)
            except TimeoutError:  # not of the tool, whose errors are results
                raise loop.too_late() from None
            loop.answer(call, result)
    return loop.result()


async def run_tool(functions: Functions, call: ToolCall) -> str:
    """Run a call and return its result for the model, or the error of a failure as a text.

    A function that is not `async` runs on a thread of its own, so that the event loop goes on.
    """
    try:
        function = _function_of(functions, call)
        if inspect.iscoroutinefunction(function):
            return _text_of(await function(**call.arguments))
        run = partial(copy_context().run, partial(function, **call.arguments))
        made, error = await on_own_thread(partial(_outcome, run), "pybatcher-tool")
        if error is None and isinstance(made, Awaitable):
            made, error = await _awaited(made)
        return _text_of(made) if error is None else _text_of_error(error)
    except _FAILURES as error:
        return _text_of_error(error)


def run_tool_here(
    functions: Functions, call: ToolCall, wait: Callable[[Coroutine[Any, Any, Any]], Any]
) -> str:
    """Do what `run_tool` does, on the calling thread. wait: runs a coroutine on an event loop."""
    try:
        made = _function_of(functions, call)(**call.arguments)
        if isinstance(made, Awaitable):
            made, error = wait(_awaited(made))
            if error is not None:
                return _text_of_error(error)
        return _text_of(made)
    except _FAILURES as error:
        return _text_of_error(error)


_FAILURES = (Exception, SystemExit)
"""The failures of a tool. A SystemExit on an event loop would end the loop, and all other calls."""


def _outcome(run: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Return a result, or the error: a future cannot have a StopIteration."""
    try:
        return run(), None
    except _FAILURES as error:
        return None, error


async def _awaited(made: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    try:
        return await made, None
    except _FAILURES as error:
        return None, error


def _function_of(functions: Functions, call: ToolCall) -> Callable[..., Any]:
    found = functions.get(call.name)
    if found is None:
        raise LookupError(f"there is no tool {call.name!r}; there are {', '.join(functions)}")
    return found


def _text_of(result: Any) -> str:
    """Return the result of a tool as a text: JSON, unless it is a text."""
    if not isinstance(result, str):
        result = json.dumps(result, ensure_ascii=False, default=str)
    return str(result).encode(errors="backslashreplace").decode()


def _text_of_error(error: BaseException) -> str:
    return _text_of(f"error: {type_name(error)}: {error}")


def _read(tools: object) -> tuple[ToolSpec, ...]:
    """Return the tools, each with its function. Raises InvalidRequestError."""
    described, functions = [], []
    for index, tool in enumerate(REQUEST.items("tools", tools, MAX_TOOLS, _TOOLS)):
        function = tool
        with REQUEST.reading(f"tools[{index}]", tool, _TOOL):
            if isinstance(tool, (list, tuple)) and len(tool) == 2:
                tool, function = tool
            if not callable(function):
                raise REQUEST.bad(f"tools[{index}]", tool, _TOOL)
        described.append(tool)
        functions.append(function)
    specs = read_tools(described)
    return tuple(
        replace(spec, function=function) for spec, function in zip(specs, functions, strict=True)
    )


def _check_one_output(params: Any, options: Mapping[str, Any]) -> None:
    n = options.get("n", params.n if issubclass(type(params), SamplingParams) else 1)
    if (plain_int(n) or 1) > 1:
        raise InvalidRequestError(
            f"n is {n}; a chat with tools goes on from one output, so it must be 1", field="n"
        )

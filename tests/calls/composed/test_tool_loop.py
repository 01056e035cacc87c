"""`act`: the turns, the calls of tools, their failures, the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from batcher_helpers import until, wait_for
from scripted_chats import ScriptedBatcher, turn_of

from pybatcher import (
    Batcher,
    Completion,
    DeadlineExceededError,
    InvalidRequestError,
    SamplingParams,
    ToolCall,
)
from pybatcher.calls.composed.tool_loop import run_tool, run_tool_here
from pybatcher.testing import FakeEngine, fake_batcher

ASKED = [{"role": "user", "content": "What is 3 plus 4?"}]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def call(name: str = "add", number: int = 0, **arguments: Any) -> ToolCall:
    return ToolCall(f"call_{number}", name, arguments, "")


async def test_calls_are_run_until_there_is_an_answer() -> None:
    batcher = ScriptedBatcher(
        turn_of("", call(a=1, b=2), call(number=1, a=3, b=4)),
        turn_of("", call(number=2, a=3, b=7)),
        turn_of("It is 10."),
    )
    given = list(ASKED)
    answer, messages = await batcher.act(given, [add], max_tokens=50)
    assert answer.text == "It is 10."
    assert given == ASKED, "the caller's list is unchanged"
    assert messages[:1] == ASKED
    roles = [one["role"] for one in messages[1:]]
    assert roles == ["assistant", "tool", "tool", "assistant", "tool", "assistant"]
    results = [(one["tool_call_id"], one["content"]) for one in messages if one["role"] == "tool"]
    assert results == [("call_0", "3"), ("call_1", "7"), ("call_2", "10")]
    assert batcher.asked[-1] == messages[:-1]
    assert {options["max_tokens"] for options in batcher.options} == {50}


async def test_the_last_turn_of_too_many_can_be_continued() -> None:
    batcher = ScriptedBatcher(*[turn_of("", call(a=1, b=2))] * 3, turn_of("done"))
    answer, messages = await batcher.act(ASKED, [add], max_turns=3)
    assert answer.finish_reason == "tool_calls"
    assert [one["role"] for one in messages[1:]] == ["assistant", "tool"] * 3
    answer, messages = await batcher.act(messages, [add], max_turns=1)
    assert answer.text == "done"
    assert len(messages) == 8


async def test_a_call_that_was_cut_is_not_run() -> None:
    turn = replace(turn_of("", replace(call(), is_cut=True)), finish_reason="length")
    ran: list[int] = []

    def note(a: int = 0, b: int = 0) -> None:
        ran.append(a)

    answer, messages = await ScriptedBatcher(turn).act(ASKED, [({"name": "add"}, note)])
    assert answer.finish_reason == "length"
    assert len(messages) == 2
    assert ran == []


async def test_a_call_is_required_in_the_first_turn_only() -> None:
    some = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "add"}]}
    for given, later in (
        ("required", "auto"),
        ({"name": "add"}, "auto"),
        ("auto", "auto"),
        (None, None),
        (some, {**some, "mode": "auto", "tools": [{"type": "function", "name": "add"}]}),
    ):
        batcher = ScriptedBatcher(turn_of("", call(a=1, b=2)), turn_of("done"))
        await batcher.act(ASKED, [add], tool_choice=given)
        assert [options["tool_choice"] for options in batcher.options] == [given, later]


class Later:
    """An object that is called like a function and has a result later."""

    async def __call__(self, **arguments: Any) -> Any:
        await asyncio.sleep(0)
        return arguments


async def slow_sum(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


async def async_failure() -> None:
    raise ValueError("not\ud800 today")


def failure() -> None:
    raise ValueError("not\ud800 today")


def no_next() -> Any:
    return next(iter([]))


def leaves() -> None:
    raise SystemExit(3)


async def async_leaves() -> None:
    raise SystemExit(3)


def loop_in_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


TOOLS: dict[str, Callable[..., Any]] = {
    "add": add,
    "later": Later(),
    "slow_sum": slow_sum,
    "text": lambda: "a text",
    "surrogate": lambda: "a\ud800b",
    "umlaut": lambda: {"ä": None},
    "an object": lambda: {1, 2} and object,
    "failure": failure,
    "async_failure": async_failure,
    "no_next": no_next,
    "leaves": leaves,
    "async_leaves": async_leaves,
    "loop_in_itself": loop_in_itself,
}
RESULTS = [
    (call("add", a=3, b=4), "7"),
    (call("add", a=3), "error: TypeError: add() missing 1 required positional argument: 'b'"),
    (call("add", a=3, b=4, func=1, self=2), "error: TypeError: add() got an unexpected keyword"),
    (call("later", a=1), '{"a": 1}'),
    (call("slow_sum", a=1, b=2), "3"),
    (call("text"), "a text"),
    (call("surrogate"), "a\\ud800b"),
    (call("umlaut"), '{"ä": null}'),
    (call("an object"), "\"<class 'object'>\""),
    (call("failure"), "error: ValueError: not\\ud800 today"),
    (call("async_failure"), "error: ValueError: not\\ud800 today"),
    (call("no_next"), "error: StopIteration: "),
    (call("leaves"), "error: SystemExit: 3"),
    (call("async_leaves"), "error: SystemExit: 3"),
    (call("loop_in_itself"), "error: ValueError: Circular reference detected"),
    (call("nothing"), "error: LookupError: there is no tool 'nothing'; there are add, later"),
]


@pytest.mark.parametrize(("asked", "expected"), RESULTS, ids=[one.name for one, _ in RESULTS])
def test_results_and_failures_are_texts_for_the_model(asked: ToolCall, expected: str) -> None:
    result = asyncio.run(run_tool(TOOLS, asked))
    assert result.startswith(expected)
    assert run_tool_here(TOOLS, asked, asyncio.run) == result
    result.encode()


async def test_a_tool_that_blocks_does_not_stop_the_loop() -> None:
    go_on = threading.Event()
    threads: list[threading.Thread] = []

    def block() -> str:
        threads.append(threading.current_thread())
        wait_for(go_on)
        return "done"

    running = asyncio.create_task(run_tool({"block": block}, call("block")))
    await until(lambda: len(threads) == 1)
    assert threads[0] is not threading.main_thread()
    assert not running.done()
    go_on.set()
    assert await running == "done"


async def test_the_timeout_is_for_all_turns_and_tools() -> None:
    go_on = threading.Event()
    batcher = ScriptedBatcher(turn_of("", call("block")), turn_of("done"))
    with pytest.raises(DeadlineExceededError, match=r"0\.05 s ran out while the tools ran"):
        await batcher.act(ASKED, [({"name": "block"}, lambda: wait_for(go_on))], timeout=0.05)
    go_on.set()

    async def too_late() -> None:
        raise TimeoutError("of the tool itself")

    batcher = ScriptedBatcher(turn_of("", call("too_late")), turn_of("done"))
    _, messages = await batcher.act(ASKED, [too_late], timeout=60.0)
    assert messages[2]["content"] == "error: TimeoutError: of the tool itself"
    first, second = (options["timeout"] for options in batcher.options)
    assert 60.0 >= first > second > 0.0
    assert (await ScriptedBatcher(turn_of("done")).act(ASKED, [])).completion.text == "done"


async def test_cancelling_ends_the_tool_and_the_request() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    batcher = ScriptedBatcher(turn_of("", call("wait_for_ever")), turn_of("done"))
    acting = asyncio.create_task(batcher.act(ASKED, [wait_for_ever]))
    await until(lambda: len(batcher.asked) == 1)
    await asyncio.sleep(0)
    acting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acting
    assert len(batcher.asked) == 1
    async with fake_batcher(FakeEngine(step_delay=0.001), chat_template=TEMPLATE) as real:
        acting = asyncio.create_task(real.act(ASKED, [], max_tokens=8000, ignore_eos=True))
        await until(lambda: real.statistics().running == 1)
        acting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acting
        await until(lambda: real.statistics().cancelled == 1)


DEFINITION = {"type": "function", "function": {"name": "plus", "parameters": {"type": "object"}}}


async def test_a_definition_has_its_function_beside_it() -> None:
    batcher = ScriptedBatcher(turn_of("", call("plus", a=1, b=2)), turn_of("done"))
    _, messages = await batcher.act(ASKED, [(DEFINITION, add)])
    assert messages[2]["content"] == "3"
    (tool,) = batcher.options[0]["tools"]
    assert tool.name == "plus"
    assert tool.parameters == {"type": "object", "properties": {}} or tool.parameters


@pytest.mark.parametrize(
    ("arguments", "message", "field"),
    [
        ({"tools": [DEFINITION]}, r"tools\[0\] is .*it must be a function, or a pair", "tools[0]"),
        ({"tools": [add, 5]}, r"tools\[1\] is 5; it must be a function", "tools[1]"),
        ({"tools": [(DEFINITION, 5)]}, r"tools\[0\] is .*must be a function, or a", "tools[0]"),
        ({"tools": [(5, add)]}, r"tools\[0\] is int", "tools[0]"),
        ({"tools": [add, add]}, r"tools\[1\].name is 'add', which another", "tools[1].name"),
        ({"tools": None}, "tools is None; it must be a list", "tools"),
        ({"tools": add}, "tools is <function add", "tools"),
        ({"tools": "add"}, "tools is 'add'", "tools"),
        ({"tools": [add] * 129}, "tools is .* a list of at most 128 tools", "tools"),
        ({"max_turns": 0}, "max_turns is 0; it must be a whole number from 1 to 1000", "max_turns"),
        ({"max_turns": 2.5}, "max_turns is 2.5", "max_turns"),
        ({"max_turns": True}, "max_turns is True", "max_turns"),
        ({"messages": []}, r"messages is \[\]; it must be a list of at least one", "messages"),
        ({"messages": "hello"}, "messages is 'hello'", "messages"),
        ({"messages": [5, 6]}, r"messages\[0\] is 5; it must be a message", "messages[0]"),
        ({"n": 2}, "n is 2; a chat with tools goes on from one output", "n"),
        ({"params": SamplingParams(n=3)}, "n is 3", "n"),
        ({"params": 5}, "params is 5", "params"),
        ({"timeout": 0}, "timeout is 0", "timeout"),
        ({"tool_choice": "ad"}, "tool_choice is 'ad'", "tool_choice"),
        ({"max_token": 5}, "unknown option 'max_token'", "max_token"),
        ({"output": [5]}, "unknown option 'output'", "output"),
    ],
)
async def test_wrong_arguments(arguments: dict[str, Any], message: str, field: str) -> None:
    async with fake_batcher(chat_template=TEMPLATE) as batcher:
        with pytest.raises(InvalidRequestError, match=message) as raised:
            await batcher.act(**{"messages": ASKED, "tools": [add], **arguments})
    assert raised.value.field == field


async def test_with_the_shipped_model() -> None:
    async with Batcher() as batcher:
        answer, messages = await batcher.act(ASKED, [add], tool_choice="required", max_turns=2)
        assert isinstance(answer, Completion)
        assert {one["role"] for one in messages} == {"user", "assistant", "tool"}

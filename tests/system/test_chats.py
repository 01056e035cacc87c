"""Chats with tools and reasoning: whole and in pieces, alone and in a crowd, on every way in."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jsonschema
import numpy as np
import pytest
from batcher_helpers import until
from chat_model import MARKER_IDS, chat_model
from pydantic import BaseModel
from serving_doubles import serving
from small_sidecar import sidecar

from pybatcher import (
    Batcher,
    BlockingBatcher,
    Client,
    Completion,
    InvalidRequestError,
    Piece,
    ToolCall,
)
from pybatcher.calls.call import chat_call
from pybatcher.calls.reply import Reply
from pybatcher.text.output import read_tools

ASK = [{"role": "user", "content": "What is the weather in Rome?"}]
HOT = {"temperature": 1.5, "max_tokens": 120}


def weather(city: Literal["Rome", "Oslo", "Lima"], days: Literal[1, 2, 3] = 1) -> str:
    """Tell the weather.

    Args:
        city: Where.
        days: For how long.
    """
    return f"{city}: sun for {days} days"


def add(a: Literal[1, 2, 3], b: Literal[4, 5]) -> int:
    """Add two numbers."""
    return a + b


TOOLS = [weather, add]
SCHEMAS = {tool.name: tool.parameters for tool in read_tools(TOOLS)}


class Person(BaseModel, extra="forbid"):
    name: Literal["Mia", "Tom"]
    age: Literal[3, 4, 5]


NO_THOUGHT = {MARKER_IDS["<think>"]: -100.0}  # or the model might think to its last token

CHATS: list[dict[str, Any]] = [
    {"tools": TOOLS, "tool_choice": "required", "logit_bias": NO_THOUGHT},
    {
        "tools": TOOLS,
        "tool_choice": {"name": "add"},
        "parallel_tool_calls": False,
        "logit_bias": NO_THOUGHT,
    },
    {"tools": TOOLS, "json_schema": Person.model_json_schema()},
    {"enable_thinking": True, "max_reasoning_tokens": 9},
    {"enable_thinking": True, "max_reasoning_tokens": 20, "choices": ["yes", "no"]},
    {
        "enable_thinking": True,
        "max_reasoning_tokens": 9,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
    {"tools": TOOLS},
    {},
]
IDS = [" ".join(chat) or "nothing" for chat in CHATS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture
async def batcher(model: Path) -> AsyncIterator[Batcher]:
    async with Batcher(model, n_threads=1, n_parallel=16) as one:
        yield one
        await until(lambda: one.statistics().running == 0)
        one.check_idle()


def parts(made: Completion) -> tuple[Any, ...]:
    """All that a completion says of its response, but for times."""
    return made.text, made.reasoning, made.tool_calls, made.notes, made.finish_reason


def joined(pieces: Iterable[Piece]) -> tuple[Any, ...]:
    """What the pieces of a stream say, put together as a client would."""
    text = reasoning = ""
    arguments: dict[int, str] = {}
    calls: dict[int, ToolCall] = {}
    for piece in pieces:
        text += piece.text
        reasoning += piece.reasoning
        for delta in piece.tool_calls:
            assert (delta.index in arguments) is not bool(delta.name), "it begins with its name"
            arguments[delta.index] = arguments.get(delta.index, "") + delta.arguments
            if delta.call is not None:
                calls[delta.index] = delta.call
                assert json.loads(arguments[delta.index]) == delta.call.arguments
    return text, reasoning, tuple(calls.values())


def check(chat: dict[str, Any], made: Completion) -> None:
    """Fail where a response that has ended by itself is not what was asked for."""
    if chat.get("tool_choice") is not None:  # else a model may call what it likes
        for call in made.tool_calls:
            jsonschema.validate(call.arguments, SCHEMAS[call.name])
    ids = [call.id for call in made.tool_calls]
    assert len(set(ids)) == len(ids)
    if made.finish_reason in ("length", "deadline"):
        return
    assert (made.finish_reason == "tool_calls") is bool(made.tool_calls)
    if chat.get("tool_choice") is not None:
        assert made.tool_calls
        assert made.text == ""
    if not chat.get("parallel_tool_calls", True):
        assert len(made.tool_calls) == 1
    if isinstance(choice := chat.get("tool_choice"), dict):
        assert [call.name for call in made.tool_calls] == [choice["name"]]
    if "json_schema" in chat and not made.tool_calls:
        Person.model_validate(made.parsed)
    if "choices" in chat:
        assert made.parsed in chat["choices"]
    if "max_reasoning_tokens" in chat:
        assert made.reasoning
        assert "</think>" not in made.text + made.reasoning


@pytest.mark.parametrize("chat", CHATS, ids=IDS)
async def test_every_response_is_what_was_asked_for(batcher: Batcher, chat: dict[str, Any]) -> None:
    made = await asyncio.gather(
        *(batcher.chat(ASK, seed=seed, **HOT, **chat) for seed in range(6)),
        batcher.chat(ASK, max_tokens=120, **chat),
    )
    for one in made:
        check(chat, one)
    assert sum(one.finish_reason in ("stop", "tool_calls") for one in made) >= 3 or not chat


@pytest.mark.parametrize("special", [False, True], ids=["tokens", "special tokens"])
async def test_the_same_alone_in_a_crowd_and_in_pieces(tmp_path: Path, special: bool) -> None:
    asked = [
        {**HOT, "max_tokens": 60, "logprobs": 1, "seed": seed, **chat}
        for seed, chat in enumerate(CHATS)
    ]
    model = chat_model(tmp_path, special=special)
    async with Batcher(model, n_threads=1, max_draft_tokens=0) as batcher:
        alone = [await batcher.chat(ASK, **one) for one in asked]
    async with Batcher(model, n_threads=2, max_draft_tokens=8, n_parallel=9, n_ctx=3072) as batcher:
        beside = [
            asyncio.ensure_future(batcher.generate(f"{i} once", max_tokens=80, ignore_eos=True))
            for i in range(4)
        ]
        streams = [batcher.stream_chat(ASK, **one) for one in asked]

        async def pieces(stream: Any) -> list[Piece]:
            return [piece async for piece in stream]

        crowd = await asyncio.gather(*map(pieces, streams))
        await asyncio.gather(*beside)
    for one, come, stream in zip(alone, crowd, streams, strict=True):
        assert stream.completion is not None
        assert stream.completion.token_ids == one.token_ids
        assert stream.completion.logprobs == one.logprobs
        assert parts(stream.completion) == parts(one)
        assert joined(come) == (one.text, one.reasoning, one.tool_calls)
        assert come[-1].finish_reason == one.finish_reason


@pytest.mark.parametrize("chat", CHATS[:6], ids=IDS[:6])
async def test_a_continuation_goes_on_from_every_cut(
    batcher: Batcher, chat: dict[str, Any]
) -> None:
    """Of what another process has drawn: the parts go on where they were, calls come whole."""
    options = {**HOT, "max_tokens": 50, "seed": 3, **chat}
    whole = await batcher.chat(ASK, **options)
    prompt = await batcher.tokenize(
        ASK, **{name: chat[name] for name in ("tools", "enable_thinking") if name in chat}
    )
    for cut in range(0, len(whole.token_ids) + 1, 3):
        reply = Reply()
        call = replace(chat_call(prompt, None, options), output=whole.token_ids[:cut])
        await batcher._running_service().submit(call, reply)
        while not reply.ended:
            await reply.wait()
        rest = reply.result()
        assert isinstance(rest, Completion)
        assert whole.token_ids[:cut] + rest.token_ids == whole.token_ids
        assert (rest.tool_calls, rest.notes) == (whole.tool_calls, whole.notes)
        assert whole.text.endswith(rest.text)
        assert whole.reasoning.endswith(rest.reasoning)
        assert rest.finish_reason == whole.finish_reason


async def test_reasoning_is_cut_after_so_many_tokens(batcher: Batcher) -> None:
    for most in (1, 5, 17):
        made = await batcher.chat(
            ASK, enable_thinking=True, max_reasoning_tokens=most, max_tokens=60
        )
        again = await batcher.tokenize(made.reasoning)
        assert 1 <= len(again) <= most + 2  # a beginning token, and words that were cut in two
        assert made.text


async def test_results_of_tools_go_back_in(batcher: Batcher) -> None:
    made = await batcher.chat(ASK, **CHATS[1], seed=1)
    (call,) = made.tool_calls
    asked = {"id": call.id, "type": "function"}
    asked["function"] = {"name": call.name, "arguments": json.dumps(call.arguments)}
    more = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": call.id, "content": "7"},
    ]
    text = await batcher.detokenize(await batcher.tokenize(more, tools=TOOLS))
    assert call.raw.removeprefix("<tool_call>").replace(" ", "") in text.replace(" ", "")
    assert "<tool_response>7</tool_response>" in text
    second = await batcher.chat(more, **CHATS[1], seed=1)
    assert second.tool_calls[0].id != call.id


async def test_a_tool_that_is_strict_is_called_right_or_not_at_all(batcher: Batcher) -> None:
    strict = {"type": "function", "function": {"name": "add", "strict": True}}
    strict["function"] |= {"parameters": SCHEMAS["add"]}  # type: ignore[operator]
    prompt = [{"role": "user", "content": "Add.<|end|><|assistant|><tool_call>\n{"}]
    made = await asyncio.gather(
        *(batcher.chat(prompt, tools=[strict], seed=seed, **HOT) for seed in range(8))
    )
    for one in made:
        check({}, one)
        assert one.notes == () or one.finish_reason == "length"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": "x"}, "tools is 'x'"),
        ({"tools": [3]}, "tools[0] is int"),
        ({"tools": np.zeros(3)}, "tools is array"),
        ({"tools": [{"name": "a b"}]}, "tools[0].name is 'a b'"),
        ({"tools": [weather, weather]}, "tools[1].name is 'weather', which another tool has"),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice is 'some'"),
        ({"tools": TOOLS, "tool_choice": {"name": "x"}}, "tool_choice.name is 'x'"),
        ({"tool_choice": "required"}, "tool_choice is 'required' and there are no tools"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls is 1"),
        ({"enable_thinking": "yes"}, "enable_thinking is 'yes'"),
        ({"reasoning_effort": 3}, "reasoning_effort is 3"),
        ({"reasoning_effort": "\ud800"}, "reasoning_effort is"),
        ({"max_reasoning_tokens": 0}, "max_reasoning_tokens is 0"),
        ({"max_reasoning_tokens": True}, "max_reasoning_tokens is True"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs is [1]"),
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs has 'messages'"),
        ({"chat_template_kwargs": {"a": object()}}, "chat_template_kwargs.a is object"),
        ({"bogus": 1}, "unknown option 'bogus'"),
        (
            {"tools": [{"name": "a", "parameters": {"pattern": "(", "type": "object"}}]},
            "",
        ),
    ],
)
async def test_bad_options_are_errors_of_their_own_call(
    batcher: Batcher, options: dict[str, Any], message: str
) -> None:
    honest = asyncio.ensure_future(batcher.chat(ASK, **CHATS[3], seed=1))
    if message:
        with pytest.raises(InvalidRequestError) as raised:
            await batcher.chat(ASK, **options, max_tokens=3)
        assert str(raised.value).startswith(message)
    else:
        await batcher.chat(ASK, **options, max_tokens=3)
    assert parts(await honest) == parts(await batcher.chat(ASK, **CHATS[3], seed=1))


async def test_options_of_chats_are_none_of_prompts(batcher: Batcher) -> None:
    for options in ({"tools": TOOLS}, {"enable_thinking": None}):
        with pytest.raises(InvalidRequestError, match="is an option of chats; give messages"):
            await batcher.generate("Once", **options)  # type: ignore[call-overload]
    with pytest.raises(InvalidRequestError, match="'tools' goes with messages"):
        await batcher.tokenize("Once", tools=TOOLS)
    with pytest.raises(InvalidRequestError, match="unknown option 'seed'"):
        await batcher.tokenize(ASK, seed=3)  # type: ignore[call-arg]


async def test_on_every_way_in(tmp_path: Path, model: Path, batcher: Batcher) -> None:
    asked = [{**HOT, "seed": seed, **chat} for seed, chat in enumerate(CHATS)]
    here = [await batcher.chat(ASK, **one) for one in asked]
    path = tmp_path / "batcher.sock"
    async with sidecar(path, batcher) as _, Client(path) as client:
        for expected, options in zip(here, asked, strict=True):
            made = await client.chat(ASK, **options)
            assert parts(made) == parts(expected)
            assert made.parsed == expected.parsed
            stream = client.stream_chat(ASK, **options)
            come = [piece async for piece in stream]
            assert joined(come) == (expected.text, expected.reasoning, expected.tool_calls)
        assert await client.tokenize(ASK, tools=TOOLS) == await batcher.tokenize(ASK, tools=TOOLS)

    def blocking() -> list[Completion]:
        with BlockingBatcher(model, n_threads=1) as one:
            return [one.chat(ASK, **options) for options in asked]

    for expected, made in zip(here, await asyncio.to_thread(blocking), strict=True):
        assert parts(made) == parts(expected)
    threadsafe = batcher.threadsafe.chat(ASK, **asked[0])
    assert parts(await asyncio.wrap_future(threadsafe)) == parts(here[0])


async def test_a_worker_that_is_killed_is_a_pause(
    tmp_path: Path, model: Path, batcher: Batcher
) -> None:
    """Text, reasoning and calls, whole and in pieces, are those of an undisturbed run."""
    calls = [{**HOT, "max_tokens": 400, "seed": seed, **chat} for seed, chat in enumerate(CHATS)]
    expected = [await batcher.chat(ASK, **call) for call in calls]
    with serving(tmp_path, "--model", str(model)) as running:
        async with Client(running.socket) as client:
            streams = [client.stream_chat(ASK, **call) for call in calls]
            firsts = [await anext(stream) for stream in streams]
            (pid,) = running.worker_pids()
            os.kill(pid, signal.SIGKILL)
            come = [
                [first, *[piece async for piece in stream]]
                for stream, first in zip(streams, firsts, strict=True)
            ]
    for one, stream, pieces in zip(expected, streams, come, strict=True):
        assert stream.completion is not None
        assert parts(stream.completion) == parts(one)
        assert joined(pieces) == (one.text, one.reasoning, one.tool_calls)


async def test_completions_can_be_pickled(batcher: Batcher) -> None:
    made = await batcher.chat(ASK, **CHATS[1], seed=1)
    assert pickle.loads(pickle.dumps(made)) == made
    person = await batcher.chat(ASK, json_schema=Person, enable_thinking=False, max_tokens=60)
    again = pickle.loads(pickle.dumps(person))
    assert (again, again.parsed) == (person, person.parsed)
    assert isinstance(again.parsed, Person)

"""Answers of the Messages API: bodies, and events of streams that come to the same."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from pybatcher import Completion, Piece, ToolCall
from pybatcher.calls.completion import FinishReason, Timeline, Usage
from pybatcher.http.anthropic.messages_output import MessageEvents, message_body, stop_text_of
from pybatcher.text.tool_call import ToolCallDelta

CALL = ToolCall("c0", "add", {"a": 1, "city": "Orléans"}, "raw")
OTHER = ToolCall("c1", "now", {}, "raw")
START = ToolCallDelta(0, "c0", "add")
HALVES = [ToolCallDelta(0, arguments=part) for part in ('{"a": 1, "ci', 'ty": "Orléans"}')]


def piece(text: str = "", *calls: ToolCallDelta, reasoning: str = "") -> Piece:
    return Piece(text, (1,), None, reasoning=reasoning, tool_calls=calls)


def made(reason: FinishReason = "stop", **more: Any) -> Completion:
    usage = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=7)
    values: dict[str, Any] = {"text": "", "token_ids": (), **more}
    return Completion(
        finish_reason=reason, usage=usage, timeline=Timeline(0, 0, 0, 0, ()), **values
    )


def body(done: Completion, *, most: int = 7, stop_text: str | None = None) -> dict[str, Any]:
    return message_body(done, id="msg_1", model="m", most=most, stop_text=stop_text)


def parsed(data: bytes) -> list[dict[str, Any]]:
    found = []
    for one in data.decode().split("\n\n")[:-1]:
        name, _, text = one.partition("\n")
        value = json.loads(text.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def streamed(steps: Iterable[list[Piece]], done: Completion, **how: Any) -> list[dict[str, Any]]:
    events = MessageEvents(id="msg_1", model="m", prompt_tokens=10, **how)
    data = [events.step(pieces) for pieces in steps]
    assert all(data)
    return parsed(b"".join([events.opening, *data, events.end(done, most=7, stop_text=None)]))


def blocks_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks that a client puts together. Each is open alone."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for one in events:
        if one["type"] == "content_block_start":
            assert not is_open
            assert one["index"] == len(blocks)
            blocks.append(one["content_block"] | {"json": ""})
            is_open = True
        elif one["type"] == "content_block_delta":
            assert is_open
            delta = {key: value for key, value in one["delta"].items() if key != "type"}
            for key, value in delta.items():
                blocks[one["index"]][key.replace("partial_", "")] += value
        elif one["type"] == "content_block_stop":
            assert is_open
            is_open = False
    assert not is_open
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    return blocks


def test_the_body_of_an_answer() -> None:
    assert body(made("tool_calls", text="Well.", reasoning="Hm.", tool_calls=(CALL, OTHER))) == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "pybatcher"},
            {"type": "text", "text": "Well."},
            {
                "type": "tool_use",
                "id": "c0",
                "name": "add",
                "input": {"a": 1, "city": "Orléans"},
            },
            {"type": "tool_use", "id": "c1", "name": "now", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "output_tokens": 7,
        },
    }
    assert body(made())["content"] == []


@pytest.mark.parametrize(
    ("reason", "most", "stop_text", "told"),
    [
        ("stop", 7, None, ("end_turn", None)),
        ("stop", 7, "END", ("stop_sequence", "END")),
        ("length", 7, None, ("max_tokens", None)),
        ("length", 8, None, ("model_context_window_exceeded", None)),
        ("deadline", 8, None, ("max_tokens", None)),
        ("tool_calls", 7, None, ("tool_use", None)),
    ],
)
def test_reasons(
    reason: FinishReason, most: int, stop_text: str | None, told: tuple[str, str | None]
) -> None:
    found = body(made(reason), most=most, stop_text=stop_text)
    assert (found["stop_reason"], found["stop_sequence"]) == told


@pytest.mark.parametrize(
    ("text", "stops", "found"),
    [
        ("one two", ("three",), None),
        ("one two", ("two", "wo"), "two"),
        ("one two", ("two", "one"), "one"),
        ("one two", ("e t", "o"), "o"),
        ("one", (), None),
    ],
)
def test_the_stop_text_that_ends_first(
    text: str, stops: tuple[str, ...], found: str | None
) -> None:
    assert stop_text_of(text, stops) == found


def test_the_events_of_a_stream() -> None:
    steps = [
        [piece(reasoning="H"), piece(reasoning="m.")],
        [piece("We"), piece("ll"), piece("")],
        [piece(".", START)],
        [piece("", HALVES[0])],
        [piece("", HALVES[1], ToolCallDelta(0, call=CALL))],
    ]
    done = made("tool_calls", text="Well.", reasoning="Hm.", tool_calls=(CALL,))
    events = streamed(steps, done)
    head, last, end = events[0], events[-2], events[-1]
    assert [one["type"] for one in events[1:-2]] == [
        *("content_block_start", "content_block_delta"),  # a step's tokens are one delta
        *("content_block_delta", "content_block_stop"),  # the signature
        *("content_block_start", "content_block_delta", "content_block_delta"),
        "ping",  # the input is not whole yet
        "content_block_stop",
        *("content_block_start", "content_block_delta", "content_block_stop"),
    ]
    whole = body(done)
    assert blocks_of(events) == whole["content"]
    assert head["message"] == {
        **whole,
        "content": [],
        "stop_reason": None,
        "usage": {
            "input_tokens": 10,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "output_tokens": 0,
        },
    }
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert last["usage"] == whole["usage"]
    assert end == {"type": "message_stop"}


def test_input_that_is_asked_for_early_comes_as_it_is_written() -> None:
    steps = [
        [piece("", START)],
        [piece("", HALVES[0])],
        [piece("", HALVES[1], ToolCallDelta(0, call=CALL))],
        [piece("", ToolCallDelta(1, "c1", "now")), piece("", ToolCallDelta(1, call=OTHER))],
    ]
    done = made("tool_calls", tool_calls=(CALL, OTHER))
    events = streamed(steps, done, eager={"add"})
    deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
    inputs = [*(half.arguments for half in HALVES), "{}"]
    assert [delta["partial_json"] for delta in deltas] == inputs
    assert blocks_of(events) == body(done)["content"]


def test_a_call_that_turns_out_to_be_none_is_text_only() -> None:
    steps = [
        [piece("", START)],
        [piece("", HALVES[0])],
        [piece("<tool>oh", ToolCallDelta(0, note="no JSON"))],
        [piece("", ToolCallDelta(1, "c1", "now"), ToolCallDelta(1, call=OTHER))],
    ]
    done = made("tool_calls", text="<tool>oh", tool_calls=(OTHER,))
    assert blocks_of(streamed(steps, done)) == body(done)["content"]


def test_half_a_character_is_no_error() -> None:
    call = ToolCall("c", "add", {"a": "\ud800"}, "raw")
    data = [piece("\ud800", ToolCallDelta(0, "c", "add"), ToolCallDelta(0, call=call))]
    (text, used) = blocks_of(streamed([data], made("tool_calls")))
    assert (text["text"], used["input"]) == ("?", {"a": "?"})

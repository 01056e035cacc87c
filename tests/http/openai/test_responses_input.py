"""`read_input`: items of OpenAI's Responses API as messages of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from pybatcher.http.base.http_error import HttpError
from pybatcher.http.base.image_sources import ImageSource
from pybatcher.http.openai.responses_input import read_input


def message(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def call(call_id: str, name: str = "add", arguments: str = "{}") -> dict[str, Any]:
    fields = {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name}
    return {**fields, "arguments": arguments}


def tool_call(call_id: str, name: str = "add", arguments: str = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def output(call_id: str, text: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def test_a_text_is_what_the_user_says() -> None:
    assert read_input("Hi") == [{"role": "user", "content": "Hi"}]
    assert read_input("") == [{"role": "user", "content": ""}]
    assert read_input("Hi", "Be short.") == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi"},
    ]


def test_messages_of_all_roles_with_and_without_a_type() -> None:
    items = [
        {"role": "user", "content": "a"},
        message("assistant", [{"type": "output_text", "text": "b", "annotations": []}]),
        message("user", [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]),
        message("assistant", [{"type": "refusal", "refusal": "e"}]),
        message("developer", "f"),
        message("system", "g"),
    ]
    assert [(one["role"], one["content"]) for one in read_input(items)] == [
        *(("user", "a"), ("assistant", "b")),
        ("user", [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]),
        *(("assistant", "e"), ("system", "f"), ("system", "g")),
    ]


URL = "data:image/png;base64,AAAA"
IMAGE = {"type": "input_image", "image_url": URL}


def test_images_of_users_and_tools() -> None:
    items = [
        message("user", [IMAGE]),
        call("c"),
        output("c", [{"type": "input_text", "text": "a"}, {**IMAGE, "detail": "low"}]),
        output("d", [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]),
    ]
    read = read_input(items)
    first = ImageSource("input[0].content[0].image_url", URL, 22)
    second = ImageSource("input[2].output[1].image_url", URL, 22)
    assert read[0]["content"] == [{"type": "image", "image": first}]
    assert read[2]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image", "image": second, "detail": "low"},
    ]
    assert read[3]["content"] == "a\nb"
    with pytest.raises(HttpError) as raised:
        read_input([message("user", [{"type": "input_image", "file_id": "file-1"}])])
    assert raised.value.param == "input[0].content[0].file_id"
    assert raised.value.code == "unsupported_parameter"


def test_the_systems_messages_at_the_beginning_are_one() -> None:
    """As Codex sends them; many templates refuse a second one."""
    items = [message("developer", "b"), message("system", "c"), message("user", "d")]
    assert read_input(items, "a") == [
        {"role": "system", "content": "a\n\nb\n\nc"},
        {"role": "user", "content": "d"},
    ]
    assert read_input(items)[0]["content"] == "b\n\nc"


def test_what_one_turn_has_said_is_one_message() -> None:
    items = [
        message("user", "What is 3 plus 4, and 5 plus 6?"),
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Two"}],
        },
        message("assistant", [{"type": "output_text", "text": "I add."}]),
        call("c1", arguments='{"a": 3}'),
        call("c2", "ping"),
        output("c1", "7"),
        output("c2", [{"type": "input_text", "text": "11"}, {"type": "input_text", "text": "!"}]),
        message("assistant", "7 and 11."),
    ]
    assert read_input(items)[1:] == [
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "Two",
            "tool_calls": [tool_call("c1", arguments='{"a": 3}'), tool_call("c2", "ping")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
        {"role": "tool", "tool_call_id": "c2", "content": "11\n!"},
        {"role": "assistant", "content": "7 and 11."},
    ]


def test_a_call_alone_and_several_texts_of_a_turn() -> None:
    assert read_input([call("c1")]) == [
        {"role": "assistant", "content": "", "tool_calls": [tool_call("c1")]}
    ]
    items = [message("assistant", "a"), call("c1"), message("assistant", "b")]
    assert read_input(items) == [
        {"role": "assistant", "content": "a\nb", "tool_calls": [tool_call("c1")]}
    ]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"summary": [{"type": "summary_text", "text": "s"}]}, "s"),
        ({"summary": [{"type": "summary_text", "text": "s"}], "content": []}, "s"),
        ({"summary": [{"type": "summary_text", "text": "s"}], "content": None}, "s"),
        ({"summary": [], "content": [{"type": "reasoning_text", "text": "c"}]}, "c"),
        ({"summary": [], "encrypted_content": "gAAA"}, None),
    ],
)
def test_reasoning_is_its_content_or_its_summary(item: dict[str, Any], text: str | None) -> None:
    found = read_input([{"type": "reasoning", **item}, message("assistant", "x")])
    expected = {"role": "assistant", "content": "x"}
    assert found == [expected if text is None else {**expected, "reasoning_content": text}]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "input"),
        ([], "input"),
        (5, "input"),
        ({"role": "user", "content": "x"}, "input"),
        ("\ud800", "input"),
        (["x"], "input[0]"),
        ([{}], "input[0].role"),
        ([{"type": "item_reference", "id": "msg_1"}], "input[0].type"),
        ([{"type": "web_search_call", "id": "ws_1"}], "input[0].type"),
        ([{"type": ["message"]}], "input[0].type"),
        ([message("tool", "x")], "input[0].role"),
        ([message("user", None)], "input[0].content"),
        ([message("user", {"text": "x"})], "input[0].content"),
        ([message("user", ["x"])], "input[0].content[0]"),
        ([message("user", [{"text": "x"}])], "input[0].content[0].type"),
        ([message("user", [{"type": {}, "text": "x"}])], "input[0].content[0].type"),
        ([message("user", [{"type": "input_text"}])], "input[0].content[0].text"),
        ([message("user", [{"type": "input_text", "text": 5}])], "input[0].content[0].text"),
        (
            [message("user", [{"type": "input_image", "image_url": "x"}])],
            "input[0].content[0].image_url",
        ),
        ([message("assistant", [IMAGE])], "input[0].content[0].type"),
        ([message("system", [IMAGE])], "input[0].content[0].type"),
        (
            [message("user", [{"type": "input_image", "image_url": URL, "detail": "max"}])],
            "input[0].content[0].detail",
        ),
        ([message("user", [{"type": "input_file", "file_id": "x"}])], "input[0].content[0].type"),
        ([message("user", [{"type": "refusal", "text": "x"}])], "input[0].content[0].refusal"),
        ([message("user", "a"), message("user", "\udfff")], "input[1].content"),
        ([call("")], "input[0].call_id"),
        ([call("c", "")], "input[0].name"),
        ([{**call("c"), "arguments": {}}], "input[0].arguments"),
        ([{**call("c"), "call_id": None}], "input[0].call_id"),
        ([output("", "x")], "input[0].call_id"),
        ([output("c", None)], "input[0].output"),
        ([output("c", {"a": 1})], "input[0].output"),
        (
            [output("c", [{"type": "input_image", "image_url": "x"}])],
            "input[0].output[0].image_url",
        ),
        ([{"type": "reasoning", "content": 5}], "input[0].content"),
        ([{"type": "reasoning", "summary": [5]}], "input[0].summary[0]"),
    ],
)
def test_other_input_is_refused_by_name(given: Any, param: str) -> None:
    with pytest.raises(HttpError) as raised:
        read_input(given)
    error = raised.value
    assert (error.status, error.param, error.code) == (400, param, "invalid_value")
    assert error.message.startswith(f"{param} is ")


def test_instructions_are_a_text() -> None:
    with pytest.raises(HttpError, match="instructions is 5; it must be a text"):
        read_input("x", 5)

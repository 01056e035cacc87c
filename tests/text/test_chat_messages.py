from __future__ import annotations

import sys
from typing import Any

import pytest

from pybatcher.errors import InvalidRequestError
from pybatcher.text.chat_messages import ArgumentForm, read_messages, unread_arguments

USER = {"role": "user", "content": "hi"}


def read(message: Any, form: ArgumentForm = "mapping", *, keeps_null: bool = False) -> Any:
    return read_messages([USER, message], keeps_null=keeps_null, arguments=form)[1]


def calling(*calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **fields}


def call(arguments: object, **fields: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"id": "a", "type": "function", "function": function, **fields}


def arguments_of(message: Any) -> Any:
    (one,) = message["tool_calls"]
    return one.get("function", one)["arguments"]


@pytest.mark.parametrize(
    ("given", "mapping", "text"),
    [
        ({"a": [1, "é"]}, {"a": [1, "é"]}, '{"a": [1, "é"]}'),
        ('{"a":[1, "\\u00e9"]}', {"a": [1, "é"]}, '{"a":[1, "\\u00e9"]}'),
        ("{}", {}, "{}"),
        ("", {}, "{}"),
        (None, {}, "{}"),
        ("[1]", "[1]", "[1]"),
        ('{"a": ', {}, '{"a": '),
        ('{"a": 1, "b": [2, "c', {"a": 1, "b": [2, "c"]}, '{"a": 1, "b": [2, "c'),
        ('{"a": 1, "b": tr', {"a": 1}, '{"a": 1, "b": tr'),
        ('{"a": "b\\u00e', {"a": "b"}, '{"a": "b\\u00e'),
        ('{"a": 1, x', '{"a": 1, x', '{"a": 1, x'),
        ('{"a": 3e+832}', {"a": sys.float_info.max}, '{"a": 3e+832}'),
        ('{"a": NaN}', '{"a": NaN}', '{"a": NaN}'),
        ("[" * 99_999, "[" * 99_999, "[" * 99_999),
        ('{"a": ' + "9" * 5000 + "}", {"a": sys.float_info.max}, '{"a": ' + "9" * 5000 + "}"),
    ],
)
def test_arguments_become_what_the_template_wants(given: Any, mapping: Any, text: str) -> None:
    assert arguments_of(read(calling(call(given)))) == mapping
    assert arguments_of(read(calling(call(given)), "text")) == text


def test_a_call_may_lack_the_outer_mapping() -> None:
    assert read(calling({"name": "f", "arguments": '{"a": 1}'}))["tool_calls"] == [
        {"name": "f", "arguments": {"a": 1}}
    ]
    assert arguments_of(read(calling({"name": "f"}))) == {}


@pytest.mark.parametrize("calls", [None, []])
@pytest.mark.parametrize("role", ["assistant", "user"])
def test_no_calls_leave_no_field(calls: Any, role: str) -> None:
    message = {"role": role, "content": "x", "tool_calls": calls}
    assert read(message) == {"role": role, "content": "x"}


@pytest.mark.parametrize("keeps_null", [True, False])
def test_an_assistant_without_content_has_none(keeps_null: bool) -> None:
    message = {"role": "assistant", "tool_calls": [call({})]}
    content = read(message, keeps_null=keeps_null)["content"]
    assert content == (None if keeps_null else "")
    assert read({"role": "tool", "x": 1}) == {"role": "tool", "x": 1}


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_has_the_names_that_templates_look_for(key: str) -> None:
    message = read({"role": "assistant", "content": "x", key: "so"})
    assert message["reasoning_content"] == message["thinking"] == "so"
    without = {"role": "assistant", "content": "x", key: None}
    assert read(without) == without


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (calling(**{"tool_calls": {"a": 1}}), r"messages\[1\]\.tool_calls is {'a': 1}"),
        (calling(**{"tool_calls": "f()"}), r"messages\[1\]\.tool_calls is 'f\(\)'"),
        (calling(call({}), role="user"), r"tool_calls is .*a list of an assistant's calls"),
        (calling("f()"), r"messages\[1\]\.tool_calls\[0\] is str"),
        (calling(call({}), call({}, type="custom")), r"\.tool_calls\[1\]\.type is 'custom'"),
        (calling(call({}, id=7)), r"\.tool_calls\[0\]\.id is 7"),
        (calling(call({}, function="f")), r"tool_calls\[0\]\.function is 'f'"),
        (calling({"function": {}}), r"\.function\.name is None; it must be the name of a tool"),
        (calling({"name": ""}), r"\.tool_calls\[0\]\.name is ''"),
        (calling({"name": 7}), r"\.name is 7"),
        (calling(call([1])), r"\.function\.arguments is \[1\]; it must be a mapping, or the JSON"),
        (calling(call(7)), r"\.arguments is 7"),
        (calling(call({"a": 10**5000})), r"arguments\.a is a whole number of 16610 bits"),
        (calling(call({"a": b"x"})), r"arguments\.a is bytes"),
        (calling(call('{"a": "\\ud800"}')), r"arguments\.a is .*lone surrogate"),
        (calling(call('{"a": "\ud800"}')), "lone surrogate"),
        (calling(call('{"a": ' + "[" * 40 + "]" * 40 + "}")), "nested more than 32"),
        (calling(call("x" * (2**20 + 1))), r"arguments has 1048577 characters; it must have at"),
        (calling(call('{"a": [' + "1," * 300_000 + "1]}"), call({})), None),
        pytest.param(
            calling(*[call('{"a": [' + "1," * 300_000 + "1]}")] * 4),
            "messages are too large",
            marks=pytest.mark.slow,
            id="too large",
        ),
        ({"role": "tool", "content": "x", "tool_call_id": 7}, r"\[1\]\.tool_call_id is 7"),
        ({"role": "tool", "content": "x", "name": ["f"]}, r"messages\[1\]\.name is \['f'\]"),
        ({"role": "assistant", "reasoning_content": 1}, r"\.reasoning_content is 1; it must be a"),
        ({"role": "assistant", "reasoning": ["x"]}, r"\.reasoning is"),
        ({"role": "assistant", "thinking": {}}, r"\.thinking is"),
    ],
)
def test_messages_of_another_shape_are_refused(message: Any, said: str | None) -> None:
    if said is None:
        read(message)
        return
    with pytest.raises(InvalidRequestError, match=said):
        read(message)


def test_calls_that_contain_themselves_are_refused() -> None:
    one = call({})
    one["function"]["arguments"]["a"] = one
    with pytest.raises(InvalidRequestError, match="nested more than 32"):
        read(calling(one))


def test_unread_arguments_are_named() -> None:
    messages = [USER, calling(call({}), {"name": "f", "arguments": "x"}), calling(call("y"))]
    read = read_messages(messages, keeps_null=False, arguments="mapping")
    assert unread_arguments(read) == "messages[1].tool_calls[1].arguments"
    assert unread_arguments([read[2]]) == "messages[0].tool_calls[0].function.arguments"
    assert unread_arguments(read[:1]) == ""

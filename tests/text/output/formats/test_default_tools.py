"""Tools, calls and results as texts: the parser reads what is written, and grammars allow it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grammar_follower import Follower

from pybatcher.text.output import (
    FORMATS,
    DefaultTools,
    ResponseFormat,
    parse_response,
    read_tool_choice,
    read_tools,
    response_grammar,
    schemas_of,
    write_calls,
)

ARGUMENTS = {
    "city": "Paris <é>\n'x' \"y\"",
    "days": -3,
    "exact": True,
    "none": None,
    "share": 1.5,
    "tags": ["a", 1, None, {"k": "v"}],
    "empty": "",
    "more": {"a b": "c", "d": {}},
}
KINDS = {"city": "string", "days": "integer", "exact": "boolean", "none": "null"}
KINDS |= {"share": "number", "tags": "array", "empty": "string", "more": "object"}
PARAMETERS = {"type": "object", "properties": {key: {"type": KINDS[key]} for key in ARGUMENTS}}
SMALL = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
TOOLS = read_tools(
    [
        {"name": "get_weather", "description": "It's.", "parameters": PARAMETERS},
        {"name": "run", "parameters": SMALL},
        {"name": "ping"},
    ]
)
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("get_weather", ARGUMENTS),
    ("run", {"a": 1, "b": "x y"}),
    ("ping", {}),
]
EVERY = pytest.mark.parametrize("format", FORMATS.values(), ids=list(FORMATS))
RENDERED = [tool.as_dict() for tool in TOOLS]
USER = {"role": "user", "content": "Sun?"}


@EVERY
def test_calls_are_read_back(format: ResponseFormat) -> None:
    for calls in ([CALLS[0]], [CALLS[1]], [CALLS[2]], CALLS, [CALLS[1], CALLS[1]]):
        text = write_calls(format, calls)
        made = parse_response(text, format, schemas=schemas_of(TOOLS))
        assert [(call.name, call.arguments) for call in made.tool_calls] == calls, text
        assert not made.content


@EVERY
def test_the_grammar_lets_a_model_write_them(format: ResponseFormat) -> None:
    grammar = response_grammar(format, TOOLS, read_tool_choice("required", TOOLS))
    follower = Follower(grammar)
    for calls in ([CALLS[1]], [CALLS[2]]):
        text = write_calls(format, calls)
        assert follower.follows(text), text
    if not format.harmony:  # its grammar ends with the first call
        assert follower.follows(write_calls(format, CALLS[1:]))


@EVERY
def test_the_description_shows_the_tools_and_the_syntax(format: ResponseFormat) -> None:
    (system, user) = DefaultTools(format).with_tools([USER], RENDERED, in_system=True)
    assert (system["role"], user) == ("system", USER)
    lines = system["content"].splitlines()
    for tool in RENDERED:
        assert json.dumps(tool["function"], ensure_ascii=False) in lines
    schema = {"properties": {"ARGUMENT": {"type": "string"}}}
    begin = system["content"].index(write_calls(format, [("NAME", {"ARGUMENT": "VALUE"})]))
    example = system["content"][begin:].rsplit("\n\n", 1)[0]
    made = parse_response(example, format, schemas={"NAME": schema})
    assert [(call.name, call.arguments) for call in made.tool_calls] == [
        ("NAME", {"ARGUMENT": "VALUE"})
    ]


def test_arguments_that_are_a_text_are_written_unchanged() -> None:
    hermes = '<tool_call>\n{"name": "run", "arguments": [1, }\n</tool_call>'
    assert write_calls(FORMATS["hermes"], [("run", "[1, ")]) == hermes
    for name in FORMATS:
        assert "[1, " in write_calls(FORMATS[name], [("run", "[1, ")])
        assert "run" in write_calls(FORMATS[name], [("run", "")])
    plain = ResponseFormat("plain")
    assert write_calls(plain, [("run", {}), ("run", "")]) == "\n".join(
        ['{"name": "run", "arguments": {}}'] * 2
    )


def test_the_place_of_the_description() -> None:
    tools = DefaultTools(FORMATS["hermes"])

    def contents(*messages: dict[str, Any], in_system: bool) -> list[tuple[str, str]]:
        made = tools.with_tools(messages, [{"name": "x"}], in_system=in_system)
        cut = [one["content"].replace(section, "SECTION") for one in made]
        return [(one["role"], text) for one, text in zip(made, cut, strict=True)]

    section = tools.with_tools([], [{"name": "x"}], in_system=True)[0]["content"]
    system = {"role": "system", "content": "Be kind.", "name": "root"}
    answer = {"role": "assistant", "content": "Yes."}
    assert contents(system, USER, in_system=True) == [
        ("system", "Be kind.\n\nSECTION"),
        ("user", "Sun?"),
    ]
    assert tools.with_tools([system], [], in_system=True)[0]["name"] == "root"
    assert system["content"] == "Be kind."
    assert contents({"role": "system", "content": ""}, in_system=True) == [("system", "SECTION")]
    assert contents(answer, USER, USER, in_system=False) == [
        ("assistant", "Yes."),
        ("user", "SECTION\n\nSun?"),
        ("user", "Sun?"),
    ]
    assert contents(answer, in_system=False) == [("user", "SECTION"), ("assistant", "Yes.")]


def test_calls_and_results_become_turns_that_alternate() -> None:
    tools = DefaultTools(FORMATS["hermes"])

    def call(name: str) -> dict[str, Any]:
        return {"id": "1", "type": "function", "function": {"name": name, "arguments": {}}}

    def written(name: str) -> str:
        return f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'

    def result(text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": "1", "content": text}

    chat: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
        result("one"),
        result("two"),
        USER,
        {"role": "assistant", "content": "So:", "tool_calls": [{"name": "c", "arguments": {}}]},
        result("three"),
        {"role": "assistant", "content": "Done."},
        USER,
    ]
    before = json.dumps(chat)
    made = tools.with_text_turns(chat)
    assert json.dumps(chat) == before
    assert made == [
        USER,
        {"role": "assistant", "content": f"{written('a')}\n{written('b')}"},
        {
            "role": "user",
            "content": "<tool_response>\none\n</tool_response>\n"
            "<tool_response>\ntwo\n</tool_response>\n\nSun?",
        },
        {"role": "assistant", "content": f"So:\n{written('c')}"},
        {"role": "user", "content": "<tool_response>\nthree\n</tool_response>"},
        {"role": "assistant", "content": "Done."},
        USER,
    ]


IMAGE = {"type": "image"}


@pytest.mark.parametrize("in_system", [True, False])
def test_the_section_is_a_part_beside_images(in_system: bool) -> None:
    role = "system" if in_system else "user"
    parts = [{"type": "text", "text": "See:"}, IMAGE]
    tools = DefaultTools(FORMATS["hermes"])
    chat = [{"role": role, "content": parts}, USER]
    (made, _) = tools.with_tools(chat, RENDERED, in_system=in_system)
    (plain, _) = tools.with_tools(
        [{"role": role, "content": "See:"}, USER], RENDERED, in_system=in_system
    )
    texts = [one["text"] for one in made["content"] if one != IMAGE]
    assert IMAGE in made["content"]
    assert "".join(texts).strip() == plain["content"].strip()


def test_an_image_of_a_tool_becomes_one_of_the_user() -> None:
    tools = DefaultTools(FORMATS["hermes"])
    result = {"role": "tool", "content": [{"type": "text", "text": "Seen:"}, IMAGE]}
    (made,) = tools.with_text_turns([result, USER])
    first, image, last = made["content"]
    assert (made["role"], image) == ("user", IMAGE)
    assert first["text"] == "<tool_response>\nSeen:"
    assert last["text"] == f"\n</tool_response>\n\n{USER['content']}"

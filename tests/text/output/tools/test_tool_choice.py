from __future__ import annotations

from random import Random
from typing import Any

import pytest
from odd_values import odd_value

from pybatcher.errors import InvalidRequestError
from pybatcher.text.output.tools.tool_choice import ToolChoice, read_tool_choice
from pybatcher.text.output.tools.tools import ToolSpec

TOOLS = (ToolSpec("f"), ToolSpec("g"), ToolSpec("auto"))
ALL = ("f", "g", "auto")


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        (None, ToolChoice("auto", ALL)),
        ("auto", ToolChoice("auto", ALL)),
        ("none", ToolChoice("none", ALL)),
        ("required", ToolChoice("required", ALL)),
        (named("auto"), ToolChoice("required", ("auto",))),
        ({"type": "function", "name": "g"}, ToolChoice("required", ("g",))),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "g"}, named("f")]},
            ToolChoice("auto", ("f", "g")),
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("g")]}},
            ToolChoice("required", ("g",)),
        ),
    ],
)
def test_choices(choice: Any, found: ToolChoice) -> None:
    assert read_tool_choice(choice, TOOLS) == found
    assert [tool.name for tool in found.tools(TOOLS)] == list(found.names)


def test_without_tools_none_is_called() -> None:
    for choice in (None, "auto", "none"):
        assert read_tool_choice(choice, ()) == ToolChoice("none", ())
    with pytest.raises(InvalidRequestError, match="there are no tools"):
        read_tool_choice("required", ())


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("any", "tool_choice is 'any'; it must be 'auto', 'none', 'required'"),
        (7, "tool_choice is 7"),
        ({}, "tool_choice.type is None"),
        (named("h"), "tool_choice.name is 'h'; it must be the name of one of the tools"),
        ({"type": "function"}, "tool_choice.name is None"),
        ({"type": "function", "function": "f"}, "tool_choice.name is None"),
        ({"type": "allowed_tools"}, "tool_choice.tools is None"),
        ({"type": "allowed_tools", "allowed_tools": 7}, "tool_choice.allowed_tools is 7"),
        ({"type": "allowed_tools", "tools": [named("h")]}, r"tool_choice.tools\[0\].name is 'h'"),
        ({"type": "allowed_tools", "mode": "x", "tools": []}, "tool_choice.mode is 'x'"),
    ],
)
def test_what_no_choice_can_be_is_named(choice: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        read_tool_choice(choice, TOOLS)


def test_values_of_every_type_are_refused_or_read() -> None:
    random = Random(4)
    for _ in range(300):
        value = odd_value(random)
        for choice in (value, named(value), {"type": "allowed_tools", "tools": value}):
            try:
                assert isinstance(read_tool_choice(choice, TOOLS), ToolChoice)
            except InvalidRequestError as error:
                str(error).encode()

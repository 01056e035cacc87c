from __future__ import annotations

from random import Random
from typing import Any

import pytest
from odd_values import odd_value

from pybatcher.errors import InvalidRequestError
from pybatcher.text.output.tools.tools import MAX_TOOLS, ToolSpec, read_tools, schemas_of


def ping(times: int = 1) -> None:
    """Ping."""


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def test_tools_of_all_kinds() -> None:
    nested = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
    flat = {"type": "function", "name": "g-1", "description": "does"}
    found = read_tools([nested, flat, ping, ToolSpec("h", parameters={})])
    assert [tool.name for tool in found] == ["f", "g-1", "ping", "h"]
    assert found[0] == ToolSpec("f", "", SCHEMA, strict=True)
    assert found[1] == ToolSpec("g-1", "does")
    assert found[2].function is ping
    assert found[2].description == "Ping."
    assert found[3].parameters == {"type": "object", "properties": {}}
    assert schemas_of(found)["f"] == SCHEMA
    assert found[0].as_dict() == {
        "type": "function",
        "function": {"name": "f", "description": "", "parameters": SCHEMA},
    }
    assert read_tools(None) == read_tools([]) == ()


def test_a_schema_is_copied() -> None:
    schema = {"properties": {"a": {}}}
    (tool,) = read_tools([{"name": "f", "parameters": schema}])
    schema["properties"]["b"] = {}
    assert list(tool.parameters["properties"]) == ["a"]


def of(parameters: Any) -> dict[str, Any]:
    return {"name": "f", "parameters": parameters}


DEEP: dict[str, Any] = {}
for _ in range(50):
    DEEP = {"properties": {"a": DEEP}}


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        (7, r"tools\[0\] is int; it must be a function or a dict"),
        ("get_weather", r"tools\[0\] is str"),
        ({}, r"tools\[0\].name is None"),
        ({"name": ""}, r"tools\[0\].name is ''"),
        ({"name": "a b"}, "is 'a b'; it must be 1 to 128 of the characters"),
        ({"name": "x" * 129}, "1 to 128"),
        ({"name": "f\n"}, "1 to 128"),
        ({"name": "é"}, "1 to 128"),
        ({"name": "f\ud800"}, "lone surrogate"),
        ({"name": "f", "description": 7}, r"tools\[0\].description is 7"),
        ({"name": "f", "description": "\udfff"}, "lone surrogate"),
        ({"name": "f", "strict": 1}, r"tools\[0\].strict is 1; it must be True or False"),
        ({"type": "web_search"}, r"tools\[0\].type is 'web_search'; it must be 'function'"),
        ({"type": "function", "function": 7}, r"tools\[0\].function is int"),
        ({7: 7}, "field names must be texts"),
        (of([]), r"tools\[0\].parameters is list; it must be a JSON schema"),
        (of({"type": "string"}), r"parameters.type is 'string'; it must be 'object'"),
        (of({"properties": []}), r"parameters.properties is \[\]"),
        (of({"properties": {"a": 7}}), r"parameters.properties.a is 7"),
        (of({"properties": {"a\n" * 999: 7}}), r"parameters.properties.a(\\na)+\.\.\."),
        (of({"properties": {"\ud800": {}}}), r"parameters.properties is dict with the field"),
        (of({"required": "a"}), r"parameters.required is 'a'; it must be a list of names"),
        (of({"required": [7]}), r"parameters.required is \[7\]"),
        (of({"minimum": float("inf")}), "a number that JSON cannot say"),
        (of({"minimum": 10**5000}), "minimum is a whole number of 16610 bits"),
        (of({"title": "\ud800"}), "lone surrogate"),
        (of({"default": object()}), "made of texts, numbers, lists and mappings"),
        (of(DEEP), "nested more than 32 levels deep"),
        (of({"enum": ["x"] * 2**15}), "too large"),
        (of({"description": "x" * 2**21}), "too large"),
        (ToolSpec("a b"), "1 to 128"),
        (ToolSpec("f", parameters=[]), "must be a JSON schema"),  # type: ignore[arg-type]
        (lambda: None, "1 to 128"),
        (print, "parameter"),
        (int, r"tools\[0\]"),
    ],
)
def test_what_no_tool_can_be_is_named(tool: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        read_tools([tool])


def test_names_are_as_long_as_agents_make_them() -> None:
    name = "mcp__" + "x" * 123
    assert read_tools([{"name": name}])[0].name == name


def test_names_are_different() -> None:
    with pytest.raises(InvalidRequestError, match=r"tools\[1\].name is 'f', which another"):
        read_tools([{"name": "f"}, {"name": "f"}])


@pytest.mark.parametrize("tools", [7, "f", {"name": "f"}, ping])
def test_tools_are_a_list(tools: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"tools is .*; it must be a list of at most 128"):
        read_tools(tools)


def test_a_request_has_a_number_of_tools() -> None:
    tools = [{"name": f"f{i}"} for i in range(MAX_TOOLS + 1)]
    assert len(read_tools(tools[:-1])) == MAX_TOOLS
    with pytest.raises(InvalidRequestError, match="at most 128"):
        read_tools(tools)


def test_values_of_every_type_are_refused_or_read() -> None:
    random = Random(3)
    refused = 0
    for _ in range(400):
        value = odd_value(random)
        for tools in (value, [value], [{"name": "f", "parameters": value}], [{"name": value}]):
            try:
                assert all(isinstance(tool, ToolSpec) for tool in read_tools(tools))
            except InvalidRequestError as error:
                refused += 1
                str(error).encode()
    assert refused > 800


def test_many_large_tools_are_too_large_together() -> None:
    """Each is read on the loop of whoever sends it: together they took seconds."""
    tools = [{"name": f"f{i}", "parameters": {"enum": [0] * 16_000}} for i in range(128)]
    assert len(read_tools(tools[:8])) == 8
    with pytest.raises(InvalidRequestError, match=r"tools\[8\].*the tools are too large together"):
        read_tools(tools)

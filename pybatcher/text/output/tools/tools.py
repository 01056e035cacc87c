"""`ToolSpec` and `read_tools`: the tools of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....errors import InvalidRequestError
from ....errors.checks import REQUEST, short, type_name
from ...plain_values import PlainReader
from .function_tools import describe_function

__all__ = ["MAX_TOOLS", "ToolSpec", "plain_tools", "read_tools", "schemas_of"]

MAX_TOOLS = 128
_MAX_UNITS = 2**14  # units of one tool: each value is one, and so are 64 characters
_MAX_UNITS_TOGETHER = 2**17  # units of all tools: the caller's event loop reads them
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_WANTED = f"a list of at most {MAX_TOOLS} functions or dicts"
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that a model may call. `read_tools` makes and checks it.

    parameters: the JSON schema of the arguments, an object. strict: calls must follow it.
    function: runs the tool; None: the caller runs it. where: the name of the tool in errors.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(_NO_PARAMETERS))
    strict: bool = False
    function: Callable[..., Any] | None = field(default=None, compare=False)
    where: str = field(default="tools", compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the tool in the shape of OpenAI's API, which chat templates expect."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


def read_tools(tools: object) -> tuple[ToolSpec, ...]:
    """Return the tools of a request.

    tools: None, or a list of functions with type hints, `ToolSpec`, and dicts in one of the shapes
        `{"type": "function", "function": {"name", "description", "parameters", "strict"}}` and
        `{"type": "function", "name", ...}`.

    Raises InvalidRequestError, which names the tool and what is wrong with it.
    """
    if tools is None:
        return ()
    found: dict[str, ToolSpec] = {}
    reader = PlainReader("the tools are too large together", most=_MAX_UNITS_TOGETHER)
    for index, tool in enumerate(REQUEST.items("tools", tools, MAX_TOOLS, _WANTED)):
        where = f"tools[{index}]"
        with REQUEST.reading(where, tool, "a function or a dict that describes one"):
            spec = _read(tool, where, reader)
        if spec.name in found:
            raise InvalidRequestError(
                f"{where}.name is {spec.name!r}, which another tool has already; each tool must "
                "have a name of its own",
                field=f"{where}.name",
            )
        found[spec.name] = spec
    return tuple(found.values())


def plain_tools(tools: object) -> list[dict[str, Any]]:
    """Return the tools of a request as dicts, functions too. Raises InvalidRequestError."""
    plain = []
    for spec in read_tools(tools):
        plain.append(spec.as_dict())
        if spec.strict:
            plain[-1]["function"]["strict"] = True
    return plain


def schemas_of(tools: tuple[ToolSpec, ...]) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of the arguments by the tools' names, for `ResponseParser`."""
    return {tool.name: tool.parameters for tool in tools}


def _read(tool: object, where: str, reader: PlainReader) -> ToolSpec:
    if isinstance(tool, ToolSpec):
        fields = {"name": tool.name, "description": tool.description, "strict": tool.strict}
        return _checked({**fields, "parameters": tool.parameters}, where, tool.function)
    if isinstance(tool, Mapping):
        return _checked(_described(tool, where, reader), where, None, is_plain=True)
    if callable(tool):
        return _checked(describe_function(tool, where), where, tool)
    raise InvalidRequestError(
        f"{where} is {type_name(tool)}; it must be a function or a dict that describes one",
        field=where,
    )


def _described(tool: Mapping[Any, Any], where: str, reader: PlainReader) -> dict[str, Any]:
    """Return the dict with the tool's name, from either shape."""
    with REQUEST.reading(where, tool, "made of texts, numbers, lists and mappings"):
        one = PlainReader("the tool is too large", most=_MAX_UNITS, within=reader)
        plain = one.mapping(tool, where, 0)
    kind = plain.get("type", "function")
    if kind != "function":
        raise REQUEST.bad(f"{where}.type", kind, "'function'")
    function = plain.get("function")
    if function is None:
        return plain
    if not isinstance(function, dict):
        raise InvalidRequestError(
            f"{where}.function is {type_name(function)}; it must be a mapping with name, "
            "description and parameters",
            field=f"{where}.function",
        )
    return function


def _checked(
    fields: Mapping[str, Any],
    where: str,
    function: Callable[..., Any] | None,
    *,
    is_plain: bool = False,
) -> ToolSpec:
    """Return the tool with these fields. is_plain: they are a copy, made of plain values."""
    name = REQUEST.text(f"{where}.name", fields.get("name"), "a text", may_be_empty=False)
    if not _NAME.fullmatch(name):
        wanted = "1 to 128 of the characters a-z, A-Z, 0-9, _ and -"
        raise REQUEST.bad(f"{where}.name", name, wanted)
    description = fields.get("description")
    text = "" if description is None else REQUEST.text(f"{where}.description", description)
    strict = fields.get("strict")
    return ToolSpec(
        name,
        text,
        _parameters(fields.get("parameters"), f"{where}.parameters", is_plain=is_plain),
        False if strict is None else REQUEST.flag(f"{where}.strict", strict),
        function,
        where,
    )


def _parameters(schema: object, where: str, *, is_plain: bool) -> dict[str, Any]:
    """Return a schema as plain data, with the parts that a call needs checked.

    is_plain: the schema is plain data already, and no one else has it.
    """
    if schema is None:
        return dict(_NO_PARAMETERS)
    if not isinstance(schema, Mapping):
        raise InvalidRequestError(
            f"{where} is {type_name(schema)}; it must be a JSON schema", field=where
        )
    if is_plain and isinstance(schema, dict):
        plain = schema
    else:
        with REQUEST.reading(where, schema, "a JSON schema"):
            reader = PlainReader("the schema is too large", most=_MAX_UNITS)
            plain = reader.mapping(schema, where, 0)
    try:
        json.dumps(plain, allow_nan=False)
    except ValueError as error:  # infinities
        raise InvalidRequestError(
            f"{where} has a number that JSON cannot say ({error}); it must be a JSON schema",
            field=where,
        ) from None
    plain.setdefault("type", "object")
    if plain["type"] != "object":
        raise REQUEST.bad(f"{where}.type", plain["type"], "'object'")
    properties, required = plain.setdefault("properties", {}), plain.get("required", [])
    if not isinstance(properties, dict):
        raise InvalidRequestError(
            f"{where}.properties is {short(properties)}; it must map names to schemas",
            field=f"{where}.properties",
        )
    for name, one in properties.items():
        if not isinstance(one, (dict, bool)):
            raise REQUEST.bad(f"{where}.properties.{short(name)[1:-1]}", one, "a JSON schema")
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        raise REQUEST.bad(f"{where}.required", required, "a list of names")
    return plain

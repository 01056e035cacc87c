"""Descriptions of Python functions as tools: name, text and the schema of the parameters."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable
from typing import Any

import typing_extensions

from ....errors import InvalidRequestError
from ....errors.checks import short
from ...plain_values import PlainReader
from .type_schemas import SchemaBuilder

__all__ = ["describe_function", "read_docstring"]

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_PARAMETERS = frozenset({"args", "arguments", "parameters"})
_SECTIONS = _PARAMETERS | {
    *("attributes", "example", "examples", "note", "notes", "raises", "references", "return"),
    *("returns", "see", "todo", "warning", "warnings", "yield", "yields"),
}
_HEADING = re.compile(r"([A-Za-z]+)( [A-Za-z]+)?:\s*")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*:\s*(.*)")


def describe_function(function: Callable[..., Any], where: str) -> dict[str, Any]:
    """Return `{"name", "description", "parameters"}` of a function.

    The types come from the annotations (a parameter without one can be anything), the texts from
    the docstring in Google style. A parameter with a default may be left out. where: names the
    function in errors. Raises InvalidRequestError.
    """
    try:
        name = function.__name__
        signature = inspect.signature(function)
        docstring = inspect.getdoc(function) or ""
    except Exception as error:  # no function, or one whose own attributes raise
        raise InvalidRequestError(
            f"{where} is {short(function)}, of which no signature can be read; it must be a "
            "function with a name, or a dict that describes the tool",
            field=where,
        ) from error
    hints = _hints(function, where)
    description, texts = read_docstring(docstring)
    builder = SchemaBuilder()
    properties: dict[str, Any] = {}
    required = []
    for parameter in signature.parameters.values():
        if parameter.kind not in _BY_NAME:
            raise InvalidRequestError(
                f"{where} has the parameter {parameter}; a tool's arguments come by name, so it "
                "must be one that has a name",
                field=where,
            )
        kind = hints.get(parameter.name, Any)
        schema = builder.schema(kind, f"{where}.{parameter.name}")
        if parameter.name in texts:
            schema["description"] = texts[parameter.name]
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
        else:
            schema |= _default(parameter.default)
        properties[parameter.name] = schema
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    if builder.definitions:
        parameters["$defs"] = builder.definitions
    return {"name": name, "description": description, "parameters": parameters}


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    target = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        return typing_extensions.get_type_hints(target, include_extras=True)
    except Exception as error:  # an undefined name, or an error of code in an annotation
        raise InvalidRequestError(
            f"{where} has annotations that cannot be read ({type(error).__name__}: {error}); they "
            "must name types that its module knows",
            field=where,
        ) from error


def _default(value: object) -> dict[str, Any]:
    """Return the schema's entry for a default; empty if JSON cannot express it."""
    plain = value.value if isinstance(value, enum.Enum) else value
    try:
        return {"default": PlainReader("it is too large", most=256).value(plain, "default", 0)}
    except InvalidRequestError:
        return {}


def read_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the description before the first section, and those of the parameters.

    docstring: without the indentation of the code, as `inspect.getdoc` returns it. The section
        "Args:" has an entry `name: text` or `name (type): text` for each parameter; lines that are
        indented further continue it.
    """
    lines = docstring.splitlines()
    first = next((i for i, line in enumerate(lines) if _section(line)), len(lines))
    description = "\n".join(lines[:first]).strip()
    parameters: dict[str, list[str]] = {}
    section, indent, current = "", 0, ""
    for line in lines[first:]:
        if heading := _section(line):
            section, indent, current = heading, 0, ""
            continue
        text = line.strip()
        if section not in _PARAMETERS or not text:
            continue
        depth = len(line) - len(line.lstrip())
        indent = indent or depth
        entry = _ENTRY.fullmatch(text) if depth <= indent else None
        if entry:
            current = entry.group(1)
            parameters[current] = [entry.group(3)] if entry.group(3) else []
        elif current:
            parameters[current].append(text)
    return description, {name: " ".join(parts) for name, parts in parameters.items()}


def _section(line: str) -> str:
    """Return the lower-case name of the section that a line begins, or ""."""
    heading = _HEADING.fullmatch(line)
    name = heading.group(1).lower() if heading else ""
    return name if name in _SECTIONS else ""

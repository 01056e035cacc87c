"""Converts arguments that a model wrote as plain text to the types of their schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .json_reader import loads
from .python_literals import python_value
from .source import MalformedCallError

__all__ = ["ALL_TYPES", "allowed_types", "quoted_value", "resolve", "typed_value"]

ALL_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_MAX_STEPS = 64  # steps through references and alternatives of a schema


def typed_value(text: str, schema: Mapping[str, Any], key: str) -> Any:
    """Return the value of the argument `key` of a tool with this schema.

    A text stays a text if the schema requires one. Otherwise it is parsed as JSON, or as a Python
    list or mapping, which some templates write; if that fails it stays a text. Without a type in
    the schema a text is parsed as JSON unless it is a JSON string.
    """
    types = _types_of(schema, key)
    if "string" in types and types != ALL_TYPES:
        return None if text == "null" and "null" in types else text
    word = text.strip()
    if "boolean" in types and word in ("True", "False"):
        return word == "True"
    if "null" in types and word == "None":
        return None
    try:
        value = loads(word)
    except MalformedCallError:
        return _python_container(word, text) if types & {"array", "object"} else text
    if isinstance(value, str) and types == ALL_TYPES:
        return text
    if "integer" in types and isinstance(value, float) and value.is_integer():
        return value if "number" in types else int(value)
    return value


def quoted_value(value: Any, schema: Mapping[str, Any], key: str) -> Any:
    """Return a value that the model wrote with its type; a text is converted by the schema.

    A text stays a text if the schema allows one, or has no type.
    """
    if not isinstance(value, str) or "string" in _types_of(schema, key):
        return value
    return typed_value(value, schema, key)


def _types_of(schema: Mapping[str, Any], key: str) -> frozenset[str]:
    properties = schema.get("properties")
    return allowed_types(properties.get(key) if isinstance(properties, Mapping) else None, schema)


def _python_container(word: str, otherwise: str) -> Any:
    """Return the list or mapping of a Python literal."""
    if not word.startswith(("[", "{")):
        return otherwise
    try:
        return python_value(word)
    except MalformedCallError:
        return otherwise


def allowed_types(wanted: object, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the JSON types that a schema allows; all without a type.

    root: the schema that references in it refer to.
    """
    return _types(wanted, root, [_MAX_STEPS])


def _types(wanted: object, root: Mapping[str, Any], steps: list[int]) -> frozenset[str]:
    """Return the types, in at most the remaining steps."""
    steps[0] -= 1
    if not isinstance(wanted, Mapping) or steps[0] < 0:
        return ALL_TYPES
    reference = wanted.get("$ref")
    if isinstance(reference, str):
        return _types(resolve(reference, root), root, steps)
    kind = wanted.get("type")
    if isinstance(kind, str):
        return frozenset({kind}) & ALL_TYPES or ALL_TYPES
    if isinstance(kind, (list, tuple)):
        named = frozenset(one for one in kind if isinstance(one, str)) & ALL_TYPES
        return named or ALL_TYPES
    for word in ("anyOf", "oneOf"):
        alternatives = wanted.get(word)
        if isinstance(alternatives, (list, tuple)) and alternatives:
            return frozenset().union(*(_types(one, root, steps) for one in alternatives))
    values = wanted.get("enum", [wanted["const"]] if "const" in wanted else None)
    if isinstance(values, (list, tuple)) and values:
        return frozenset(map(_type_of, values))
    return ALL_TYPES


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


def resolve(reference: str, root: Mapping[str, Any]) -> object:
    """Return the target of a reference within the schema; None if it has none."""
    found: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(found, Mapping):
            return None
        found = found.get(step.replace("~1", "/").replace("~0", "~"))
    return found

from __future__ import annotations

import sys
from typing import Any

import pytest

from pybatcher.text.output.read.argument_values import (
    ALL_TYPES,
    allowed_types,
    quoted_value,
    typed_value,
)

ROOT = {"$defs": {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}, "a/b": {"const": 1}}}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("7", {"type": "string"}, "7"),
        (" 7\n", {"type": "integer"}, 7),
        ("7.0", {"type": "integer"}, 7),
        ("7.0", {"type": "number"}, 7.0),
        ("7.5", {"type": "integer"}, 7.5),
        ("True", {"type": "boolean"}, True),
        ("false", {"type": "boolean"}, False),
        ("None", {"type": ["integer", "null"]}, None),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string"}, "null"),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("['a', True]", {"type": "array"}, ["a", True]),
        (" {'a': None} ", {"type": "object"}, {"a": None}),
        ("['a', f()]", {"type": "array"}, "['a', f()]"),
        ("['a'", {"type": "array"}, "['a'"),
        ("['a'] b", {"type": "array"}, "['a'] b"),
        ("['a']", {"type": "integer"}, "['a']"),
        ("'a'", {"type": "array"}, "'a'"),
        ("seven", {"type": "integer"}, "seven"),
        ("7", {"$ref": "#/$defs/n"}, 7),
        ("7", {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}]}, "7"),
        ("7", {"enum": ["7", "8"]}, "7"),
        ("7", {"enum": [7, 8]}, 7),
        ("7", {}, 7),
        ('"7"', {}, '"7"'),
        ("x", {}, "x"),
        ("NaN", {}, "NaN"),
        ("9" * 5000, {"type": "integer"}, int(sys.float_info.max)),
        ("[" * 9000, {"type": "array"}, "[" * 9000),
    ],
)
def test_a_value_has_the_type_of_its_schema(text: str, schema: Any, value: Any) -> None:
    found = typed_value(text, {**ROOT, "properties": {"k": schema}}, "k")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("schema", [{}, {"properties": 3}, {"properties": {"other": {}}}])
def test_an_argument_that_the_schema_does_not_know_can_be_anything(schema: Any) -> None:
    assert typed_value("7", schema, "k") == 7


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {"type": "text"},
        {"type": 7},
        {"$ref": "#/$defs/loop"},
        {"$ref": "#/nowhere/at/all"},
        {"$ref": "http://example.com"},
        {"anyOf": 1},
        {"enum": {}},
    ],
)
def test_a_schema_that_says_nothing_allows_all_types(schema: Any) -> None:
    assert allowed_types(schema, ROOT) == ALL_TYPES


def test_references_are_unescaped() -> None:
    assert allowed_types({"$ref": "#/$defs/a~1b"}, ROOT) == {"integer"}


@pytest.mark.parametrize(
    ("given", "schema", "value"),
    [
        ("3", {"type": "integer"}, 3),
        ("True", {"type": "boolean"}, True),
        ("['x']", {"type": "array"}, ["x"]),
        ("three", {"type": "integer"}, "three"),
        ("3", {"type": "string"}, "3"),
        ("3", {"type": ["string", "integer"]}, "3"),
        ("null", {"type": ["string", "null"]}, "null"),
        ("3", {}, "3"),
        (3, {"type": "string"}, 3),
    ],
)
def test_what_was_quoted_is_a_text_where_it_may_be(given: Any, schema: Any, value: Any) -> None:
    found = quoted_value(given, {"properties": {"k": schema}}, "k")
    assert (found, type(found)) == (value, type(value))

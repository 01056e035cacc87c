"""Keywords that constrain nothing, against the library jsonschema."""

from __future__ import annotations

import copy
import json
from itertools import product
from typing import Any

import jsonschema
import pytest

from pybatcher.text.grammars.idle_keywords import UNENFORCED, remove_idle

TEXT = {"type": "string"}
NEVER = {"not": {}}
OLD = {"$schema": "http://json-schema.org/draft-07/schema#"}
OLDER = {"$schema": "http://json-schema.org/draft-04/schema#"}
OPEN = {"properties": {"a": {}, "b": TEXT}}
CLOSED = {**OPEN, "additionalProperties": False}

IDLE: list[dict[str, Any]] = [
    {"type": "object", "propertyNames": TEXT, "additionalProperties": {"type": "integer"}},
    {"propertyNames": True},
    {"propertyNames": {}},
    {"propertyNames": {"title": "Key", "type": ["string", "null"], "minLength": 0, "pattern": ""}},
    {"propertyNames": {"$ref": "#/$defs/key"}, "$defs": {"key": TEXT}},
    {"propertyNames": {"anyOf": [{"pattern": "^a"}, TEXT]}},
    {"propertyNames": {"allOf": [TEXT, {"minimum": 3}]}},
    {"uniqueItems": False},
    {"type": "array", "uniqueItems": True, "maxItems": 1},
    {"type": ["string", "null"], "uniqueItems": True, "contains": TEXT, "minContains": 2},
    {"type": "integer", "propertyNames": {"pattern": "^a"}, "dependentRequired": {"a": ["b"]}},
    {"minContains": 0},
    {"maxContains": 1},
    {"contains": TEXT, "minContains": 0},
    {"contains": {}},
    {"contains": True, "minContains": 2, "maxContains": 3, "maxItems": 9},
    {"not": NEVER},
    {"not": False},
    NEVER,
    {"not": True},
    {"properties": {"a": TEXT}, "additionalProperties": NEVER},
    {"items": {"not": {"description": "none"}}},
    {"if": TEXT},
    {"if": TEXT, "then": {}, "else": True},
    {"then": {"maxLength": 1}, "else": False},
    {"if": {}, "then": {"type": "integer"}, "else": TEXT},
    {"if": NEVER, "then": {"type": "integer"}, "else": TEXT},
    {"dependentRequired": {}},
    {"dependentRequired": {"a": []}},
    {"dependentRequired": {"a": ["b"]}, "required": ["b"]},
    {"dependentSchemas": {"a": True, "b": {"description": "any"}}},
    {**OLD, "dependencies": {"a": [], "b": {}}},
    {"unevaluatedProperties": True, "unevaluatedItems": {}},
    {**OPEN, "unevaluatedProperties": False},
    {**CLOSED, "unevaluatedProperties": False},
    {"prefixItems": [TEXT], "unevaluatedItems": False},
    {"items": TEXT, "unevaluatedItems": False},
    {"minProperties": 1, "required": ["a"]},
    {**CLOSED, "maxProperties": 2},
    {"minLength": 0, "minItems": 0, "minProperties": 0, "required": []},
    {"maxLength": 2.0, "maxItems": 1.0},
    {"format": "password"},
    {"type": "string", "format": "uri-reference"},
    {"type": "integer", "format": "int64"},
    {"$dynamicAnchor": "node", "type": "integer"},
    {"$schema": "https://json-schema.org/draft-07/schema", "type": "integer"},
    {"$schema": "https://example.com/own", "type": "integer"},
    {**OLDER, "type": "integer", "minimum": 3},
    {"deprecated": True, "readOnly": True, "nullable": True, "$comment": "a", "examples": [1]},
    {"contentEncoding": "base64", "contentMediaType": "image/png", "contentSchema": {"not": TEXT}},
    {"discriminator": {"propertyName": "a"}, "xml": {"not": {}}, "externalDocs": {"url": "a"}},
    {"x-order": {"uniqueItems": True}, "title": "A", "default": None},
]
CONDITIONS: list[dict[str, Any]] = [
    {"propertyNames": {"enum": ["a", "c"]}, "additionalProperties": {"type": "integer"}},
    {"propertyNames": {"const": "a"}, **OPEN},
    {"propertyNames": {"enum": ["a", "b"]}, **CLOSED},
    {"propertyNames": {"$ref": "#/$defs/key"}, "$defs": {"key": {"enum": ["a"]}}},
    {"propertyNames": {"type": "string", "pattern": "^a"}},
    {"propertyNames": {"minLength": 2}, "additionalProperties": TEXT},
    {"propertyNames": {"minLength": 1, "maxLength": 1}},
]
_VALUES = [0, 3, 2.5, "", "a", "abc", None, True]
INSTANCES: list[Any] = [
    *_VALUES,
    *([list(one) for n in range(4) for one in product([1, "a"], repeat=n)]),
    [1, 1],
    *({"a": one} for one in _VALUES),
    *({"b": one} for one in _VALUES),
    *(dict.fromkeys(keys, one) for keys in ("", "ab", "ac", "c", "abc") for one in (1, "x")),
    {"ab": "x"},
    {"": "x", "zz": 3},
]


def changed(schema: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(schema)
    remove_idle(made, made, json.dumps(schema))
    return made


def valid(schema: dict[str, Any]) -> list[Any]:
    """The instances of a schema, by the draft that it names as it should."""
    draft = jsonschema.Draft4Validator if "draft-04" in str(schema) else jsonschema.Draft7Validator
    names_old = any(f"draft-0{n}" in str(schema.get("$schema")) for n in "467")
    validator = (draft if names_old else jsonschema.Draft202012Validator)(schema)
    return [one for one in INSTANCES if validator.is_valid(one)]


@pytest.mark.parametrize("schema", IDLE, ids=json.dumps)
def test_without_idle_keywords_a_schema_has_the_same_instances(schema: dict[str, Any]) -> None:
    made = changed(schema)
    assert not made.keys() & UNENFORCED
    assert valid(made) == valid(schema)


@pytest.mark.parametrize("schema", CONDITIONS, ids=json.dumps)
def test_a_condition_of_names_becomes_names_or_a_pattern(schema: dict[str, Any]) -> None:
    made = changed(schema)
    assert not made.keys() & UNENFORCED
    assert valid(made) == valid(schema)
    assert any(isinstance(one, dict) and one for one in valid(made))


@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"pattern": "^a"}, **OPEN},
        {"propertyNames": {"format": "email"}},
        {"propertyNames": {"enum": ["a"]}, "patternProperties": {"a": {}}},
        {"uniqueItems": True},
        {"contains": TEXT},
        {"contains": TEXT, "minContains": 0, "maxContains": 1},
        {"not": TEXT},
        {"if": TEXT, "then": {"minLength": 1}},
        {"dependentRequired": {"a": ["b"]}},
        {"dependentSchemas": {"a": TEXT}},
        {"allOf": [OPEN], "unevaluatedProperties": False},
        {"$dynamicRef": "#a"},
    ],
    ids=json.dumps,
)
def test_keywords_that_constrain_are_left(schema: dict[str, Any]) -> None:
    assert changed(schema) == schema


@pytest.mark.parametrize("key", ["maxLength", "enum", "items", "properties", "description"])
def test_null_is_no_keyword(key: str) -> None:
    assert changed({key: None, "const": None}) == {"const": None}

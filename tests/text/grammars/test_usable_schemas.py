from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from pybatcher import InvalidRequestError
from pybatcher.text.grammars.usable_schemas import usable_schema

TEXT = {"type": "string"}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"uniqueItems": True}, "uniqueItems"),
    ({"contains": TEXT}, "contains"),
    ({"not": TEXT}, "not"),
    ({"if": TEXT, "then": {"minLength": 3}}, "if"),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"oneOf": [TEXT, {"minLength": 3}]}, "oneOf"),
    ({"patternProperties": {"^a": TEXT, "b$": {}}}, "patternProperties"),
    ({"type": "string", "pattern": "^(?!a)b"}, "pattern"),
    ({"type": "string", "pattern": r"a\z"}, "the pattern"),
    ({"type": "file"}, "type"),
    ({"multipleOf": 0}, "multipleOf"),
    ({"minLength": -1}, "minLength"),
    ({"minProperties": 4}, "minProperties"),
    ({"$ref": "https://example.com/a"}, r"\$ref"),
    ({"$ref": "#/$defs/none"}, r"\$ref"),
    ({"enum": "a"}, "enum"),
    ({"items": "a"}, "items"),
    ({"anyOf": [1]}, "anyOf"),
    ({"enum": [0.30000000000000004]}, "enum"),
]


def inside(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"q": schema, "z": {"type": "array", "items": TEXT}}}


@pytest.mark.parametrize(("schema", "keyword"), REFUSED, ids=str)
def test_a_refusal_names_keyword_and_place(schema: dict[str, Any], keyword: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=rf"^json_schema\.properties\.q has {keyword}"
    ) as one:
        usable_schema(json.dumps(inside(schema)))
    assert one.value.field == "json_schema"
    assert "..." not in str(one.value)


@pytest.mark.parametrize(("schema", "_"), REFUSED, ids=str)
def test_a_looser_schema_keeps_all_else(schema: dict[str, Any], _: str) -> None:
    made = json.loads(usable_schema(json.dumps(inside(schema)), loose=True))
    checks = jsonschema.Draft202012Validator(made)
    assert checks.is_valid({"q": "abc", "z": ["x"]})
    assert not checks.is_valid("abc")
    assert not checks.is_valid({"z": [1]})


def test_what_is_too_odd_is_any_object() -> None:
    deep: Any = {}
    for _ in range(400):
        deep = {"items": deep}
    for odd in ({"type": "object", "$ref": "#/nowhere/a"}, {"type": "file"}):
        made = json.loads(usable_schema(json.dumps(odd), loose=True))
        assert made == {"type": "object"}
    usable_schema(json.dumps({"type": "object", "properties": {"a": deep}}), loose=True)


def test_the_keyword_of_a_definition_that_is_used_is_named() -> None:
    schema = {"$defs": {"a": {"not": TEXT}}, "properties": {"b": {"$ref": "#/$defs/a"}}}
    with pytest.raises(InvalidRequestError, match=r"^json_schema\.\$defs\.a has not"):
        usable_schema(json.dumps(schema))
    del schema["properties"]
    usable_schema(json.dumps(schema))

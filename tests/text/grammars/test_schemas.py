from __future__ import annotations

import json
import sys
from decimal import Decimal
from typing import Any

import pytest
from form_texts import matches

from pybatcher import InvalidRequestError
from pybatcher.text import Tokenizer
from pybatcher.text.grammars import GrammarCompiler
from pybatcher.text.grammars.schemas import strict_schema

LISTED = {"properties": {"a": {"type": "integer"}}}
DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
REFERRING = {**DRAFT_7, "definitions": {"x": {"type": "number"}, "any": {}}}
ARRAY = {"$ref": "#/definitions/any", "type": "array"}
CONST = {"const": "a", "minLength": 1}
LARGE = 2**53 + 1


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        # A name has one spelling.
        (LISTED, [{"a": 1}, {"b": "x"}], [{"a": "x"}, b'{"\\u0061": "x"}']),
        ({"type": "string"}, ["a\n\t\"\\"], [b'"\\u0061"', b'"\\u0000"']),
        # Draft 4's exclusive bounds, also apart from theirs.
        (
            {**DRAFT_4, "exclusiveMinimum": True, "enum": [5, 6], "minimum": 5},
            [6],
            [5],
        ),
        ({**DRAFT_4, "exclusiveMaximum": False, "maximum": 5}, [5], [6]),
        ({**DRAFT_4, "type": "integer", "exclusiveMaximum": True}, [5], ["a"]),
        # Items beyond a list.
        ({**DRAFT_7, "additionalItems": False, "anyOf": [{}], "items": [{}]}, [[1]], [[1, 2]]),
        ({"prefixItems": [{"type": "string"}], "additionalItems": False}, [["a"]], [[1]]),
        # Dates that there are.
        ({"format": "date"}, ["2020-02-29", "2000-02-29", "2021-12-31"], ["2021-02-29"]),
        ({"format": "date"}, ["0001-01-01"], ["1900-02-29", "0000-01-01", "2021-02-30"]),
        ({"format": "time"}, ["23:59:59Z"], ["23:59:60Z", "23:58:60Z"]),
        (
            {"format": "date-time"},
            ["2024-02-29T10:00:00Z", "2024-10-10T10:00:00.5+01:00"],
            ["2023-02-29T10:00:00Z", "1998-12-31T23:58:60Z", "0000-01-01T00:00:00Z"],
        ),
        ({"format": "date", "pattern": "^2"}, ["2021-01-01"], ["1999-01-01", "2021-02-29"]),
        (
            {"format": "date", "pattern": "^2", "allOf": [{"pattern": "1$"}]},
            ["2021-01-01"],
            ["2021-01-02", "2021-02-29"],
        ),
        # Bounds.
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, [0.25], [0, 0.5]),
        ({"exclusiveMinimum": -0.5, "exclusiveMaximum": 0}, [-0.25], [0, b"-0", -0.5]),
        ({"exclusiveMinimum": 1, "maximum": 1.5}, [1.5, 1.25], [1, b"1.0", 1.75]),
        ({"minimum": 3, "exclusiveMinimum": 1}, [3], [2]),
        ({"minimum": 1, "exclusiveMinimum": 3}, [3.5], [3]),
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, [4], [3, 5]),
        ({"type": "integer", "maximum": LARGE}, [LARGE - 1], [LARGE + 1]),
        ({"type": "integer", "minimum": LARGE}, [LARGE + 1], [LARGE - 1]),
        ({"type": "integer", "exclusiveMaximum": 10**15}, [10**15 - 1], [10**15]),
        ({"type": "number", "maximum": 2**63 - 1}, [2**62], [2**63]),
        ({"minimum": 0.30000000000000004}, [0.4], [0.3]),
        ({"exclusiveMinimum": 1.5}, [1.6], [1.5]),
        # Keywords are none in lists of names, and values are no schemas.
        (
            {"properties": {"const": {"exclusiveMinimum": 1, "maximum": 1.5}}},
            [{"const": 1.25}],
            [{"const": 1}],
        ),
        ({"const": {"minProperties": 7, "pattern": 1}}, [{"minProperties": 7, "pattern": 1}], [7]),
        # What counts nothing in a draft does, if it is not for `oneOf`.
        ({**DRAFT_4, "const": 1, "type": "number"}, [1], [2]),
        ({**DRAFT_7, "oneOf": [{"const": "a"}, {"type": "null"}]}, ["a", None], ["b"]),
        (REFERRING | {"items": {"$ref": "#/definitions/x", "maximum": 5}}, [[5]], [[6], ["a"]]),
        # Options of llguidance do not loosen a schema.
        ({"x-guidance": {"whitespace_flexible": True}, "type": "array"}, [[1, 2]], [b"[1,2]"]),
    ],
)  # fmt: skip
def test_schemas_are_kept_to_the_letter(
    compiler: GrammarCompiler,
    tokenizer: Tokenizer,
    schema: dict[str, Any],
    right: list[Any],
    wrong: list[Any],
) -> None:
    for value in right:
        assert matches(compiler, tokenizer, schema, value), value
    for value in wrong:
        assert not matches(compiler, tokenizer, schema, value), value


NO_NAMES = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"const": LARGE}, "json_schema has const 9007199254740993"),
        ({"enum": [1, [{"a": 10**400}]]}, "json_schema has enum"),
        ({"enum": [0.30000000000000004]}, "json_schema has enum 0.30000000000000004"),
        ({"const": "a\x01"}, "json_schema has const"),
        ({"items": {"enum": ["a", {"b": "\x7f"}]}}, r"json_schema\.items has enum"),
        ({"minimum": 10**400}, "json_schema has minimum"),
        ({"minProperties": 2}, "json_schema has minProperties 2"),
        ({"minProperties": 3, "required": ["a"], **LISTED}, "json_schema has minProperties 3"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, r"json_schema has \$schema"),
        (
            {**DRAFT_4, "oneOf": [CONST, {"type": "null"}]},
            "json_schema has oneOf",
        ),
        (REFERRING | {"oneOf": [{"type": "number"}, ARRAY]}, "json_schema has oneOf"),
        ({"$defs": {"a": {"pattern": r"a\z"}}}, r"json_schema\.\$defs\.a has the pattern"),
        ({"patternProperties": {r"\z": {}}}, "json_schema has the pattern"),
        ({"patternProperties": {r"\_": {}, "_": {}}}, "json_schema has patternProperties"),
        ({"x-guidance": {"lenient": True}, "not": {"type": "null"}}, "json_schema has not"),
        (
            {"x-guidance": {"coerce_one_of": True}, "oneOf": [{"minimum": 1}, {"minimum": 2}]},
            "json_schema has oneOf",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        matches(compiler, tokenizer, schema, 1)


@pytest.mark.parametrize(
    "schema",
    [
        {"minProperties": 1},
        {"minProperties": 2, "required": ["a"], **LISTED},
        {"minProperties": 3, "required": ["a", "b"], **NO_NAMES},
        {"const": 2**60},
        {"default": LARGE, "examples": [LARGE]},
        {"type": "string", "format": "uuid"},
        {"minProperties": "many", "format": 1, "pattern": {"a": 1}, "patternProperties": 3},
    ],
)
def test_all_else_is_left_as_it_is(schema: dict[str, Any]) -> None:
    assert json.loads(strict_schema(json.dumps(schema))) == schema


def test_what_is_nested_deeply_is_refused() -> None:
    n_levels = 20_000 if sys.version_info < (3, 14) else 200_000  # then what the stack has room for
    deep = '{"items": ' * n_levels + "{}" + "}" * n_levels
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        strict_schema(deep)


def test_bounds_are_brought_inwards_and_little() -> None:
    """Of many numbers, with and without a point, of each sign."""
    for number in (1, 7, 10**13 + 1, LARGE, 2**62 + 1, 0.1, 1.5, 123.456, 0.1 + 0.2, 1e-7):
        for sign in (1, -1):
            bound = sign * number
            for key, inwards in (("inimum", 1), ("aximum", -1)):
                for name in (f"m{key}", f"exclusiveM{key}"):
                    made = json.loads(strict_schema(json.dumps({name: bound})))
                    assert list(made) == [f"m{key}"]
                    (read,) = made.values()
                    by = inwards * (Decimal(repr(read)) - Decimal(repr(bound)))
                    assert by > 0 or (by == 0 and not name.startswith("ex"))
                    assert by <= max(abs(Decimal(bound)) * Decimal("1e-12"), 1)
                    n_digits = len(Decimal(repr(read)).as_tuple().digits)
                    assert isinstance(read, int) or n_digits <= 15

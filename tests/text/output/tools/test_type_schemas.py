from __future__ import annotations

import dataclasses
import datetime
import enum
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, TypedDict, Union

import pytest

from pybatcher.errors import InvalidRequestError
from pybatcher.text.output.tools.type_schemas import SchemaBuilder


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1


class Odd(enum.Enum):
    OBJECT = object()


class Empty(enum.Enum):
    pass


class Place(TypedDict):
    city: str
    country: NotRequired[str]


@dataclasses.dataclass
class Trip:
    to: Place
    days: int = 1
    tags: list[str] = dataclasses.field(default_factory=list)
    made: bool = dataclasses.field(init=False, default=False)


@dataclasses.dataclass
class Node:
    inner: list[Node]


PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
STRINGS = {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (Any, {}),
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Optional[str], {"type": ["string", "null"]}),  # noqa: UP045
        (int | float, {"type": ["integer", "number"]}),
        (Union[int, list[str]], {"anyOf": [{"type": "integer"}, STRINGS]}),  # noqa: UP007
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}),
        (Literal[Colour.RED], {"type": "string", "enum": ["red"]}),
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (Size, {"type": "integer", "enum": [1]}),
        (list, {"type": "array"}),
        (list[str], STRINGS),
        (Sequence[str], STRINGS),
        (set[str], {**STRINGS, "uniqueItems": True}),
        (frozenset, {"type": "array", "uniqueItems": True}),
        (tuple[str, ...], STRINGS),
        (
            tuple[str, int],
            {
                "type": "array",
                "prefixItems": [{"type": "string"}, {"type": "integer"}],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping[str, Any], {"type": "object", "additionalProperties": {}}),
        (Place, PLACE),
        (
            Trip,
            {
                "type": "object",
                "properties": {"to": PLACE, "days": {"type": "integer"}, "tags": STRINGS},
                "required": ["to"],
                "additionalProperties": False,
            },
        ),
        (Annotated[int, 7, "how many"], {"type": "integer", "description": "how many"}),
        (NewType("Id", str), {"type": "string"}),
    ],
)
def test_schemas_of_types(kind: Any, schema: dict[str, Any]) -> None:
    assert SchemaBuilder().schema(kind, "x") == schema


class Unknown:
    pass


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Unknown, "x is .*Unknown.* no JSON schema"),
        (Node, r"x.inner\[\] is .*Node.* contains itself"),
        (dict[int, str], "keys of a mapping must be str"),
        (Odd, "x has the value <object"),
        (Empty, "x is an enum without values"),
        (list[Unknown], r"x\[\] is .*Unknown"),
        ([], r"x is \[\]"),
        ("str", "x is 'str'"),
        (7, "x is 7"),
    ],
)
def test_types_without_a_schema_are_named(kind: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        SchemaBuilder().schema(kind, "x")


def test_deep_types_have_an_end() -> None:
    kind: Any = str
    for _ in range(40):
        kind = list[kind]
    with pytest.raises(InvalidRequestError, match="nested more than"):
        SchemaBuilder().schema(kind, "x")


def test_other_types_come_from_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Stop(pydantic.BaseModel):
        at: datetime.date

    class Route(pydantic.BaseModel):
        stops: list[Stop]

    builder = SchemaBuilder()
    assert builder.schema(datetime.date, "x") == {"type": "string", "format": "date"}
    route = builder.schema(Route, "x")
    assert route["properties"]["stops"]["items"] == {"$ref": "#/$defs/Stop"}
    assert builder.definitions["Stop"]["required"] == ["at"]


def test_without_pydantic_other_types_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(InvalidRequestError, match="need pydantic"):
        SchemaBuilder().schema(datetime.date, "x")

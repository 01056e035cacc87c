from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pybatcher import InvalidRequestError, SamplingParams
from pybatcher.params import JsonSchema, StructuredOutput, schema_text
from pybatcher.params.structured_output import TooLargeError, bounded_json

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


@dataclass
class Point:
    x: int
    y: int = 0


def test_a_schema_is_a_text_however_it_is_given() -> None:
    for given in (SCHEMA, json.dumps(SCHEMA), schema_text(SCHEMA)):
        made = SamplingParams(json_schema=given)
        assert json.loads(made.json_schema) == SCHEMA
        assert list(json.loads(made.json_schema)["properties"]) == ["b", "a"]
        assert made.form == StructuredOutput("json_schema", json.dumps(SCHEMA))


@pytest.mark.parametrize("given", [Point, list[int], dict[str, Point], int | None])
def test_a_type_keeps_its_adapter(given: Any) -> None:
    made = replace(SamplingParams(json_schema=given), max_tokens=3)
    assert isinstance(made.json_schema, JsonSchema)
    assert json.loads(made.json_schema)
    assert made.json_schema.adapter is not None
    assert schema_text(made.json_schema) is made.json_schema


def test_each_field_gives_its_form() -> None:
    assert SamplingParams().form is None
    assert SamplingParams(regex="a+").form == StructuredOutput("regex", "a+")
    assert SamplingParams(grammar="start: /a/").form == StructuredOutput("grammar", "start: /a/")
    assert SamplingParams(choices=["ä", "b"]).form == StructuredOutput("choices", '["ä", "b"]')
    assert SamplingParams(json_object=True).form == StructuredOutput("json_object", "")


deep: list[Any] = []


for _ in range(100_000):
    deep = [deep]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("json_schema", "{"),
        ("json_schema", "[]"),
        ("json_schema", "true"),
        ("json_schema", 5),
        ("json_schema", [1]),
        ("json_schema", {"a": {1, 2}}),
        ("json_schema", {"a": float("nan")}),
        ("json_schema", {"a": deep}),
        ("json_schema", "[" * 100_000),
        ("json_schema", {"title": "\ud800"}),
        ("json_schema", {"title": "x" * 2**20}),
        ("json_schema", object()),
        ("regex", ""),
        ("regex", b"a"),
        ("regex", "a" * 2**17),
        ("regex", "\ud800"),
        ("grammar", 1),
        ("grammar", "x" * 2**21),
        ("choices", []),
        ("choices", "yes"),
        ("choices", ["a", ""]),
        ("choices", ["a", "a"]),
        ("choices", ["a", 1]),
        ("choices", ["\ud800"]),
        ("choices", ["x" * 2**20, "y"]),
        ("choices", [str(i) for i in range(20_000)]),
        ("json_object", 1),
        ("json_object", None),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)
def test_what_is_no_form_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        SamplingParams(**{name: value})


def test_an_output_has_one_form() -> None:
    with pytest.raises(InvalidRequestError, match="json_schema and regex are both given"):
        SamplingParams(json_schema=SCHEMA, regex="a")
    with pytest.raises(InvalidRequestError, match="choices and json_object are both given"):
        SamplingParams(choices=["a"], json_object=True)


def test_without_pydantic_types_are_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydantic", None)
    with pytest.raises(InvalidRequestError, match="pip install pydantic"):
        SamplingParams(json_schema=Point)


class Unending(Mapping[str, Any]):
    """Has endlessly many keys, and says it has one."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: str) -> Any:
        return key

    def __iter__(self) -> Iterator[str]:
        return iter(lambda: "key", "")


def test_a_schema_without_an_end_is_read_as_far_as_it_says() -> None:
    """It held the event loop, and all who are on it, for ever."""
    assert schema_text(Unending()) == '{"key": "key"}'
    shared: list[Any] = ["x" * 1000]
    for _ in range(60):
        shared = [shared, shared]
    with pytest.raises(InvalidRequestError, match="too large: it has more than 1048576 char"):
        schema_text({"enum": shared})


class Trap:
    """Not even `isinstance` works with it."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise ZeroDivisionError


def test_a_schema_of_a_class_that_raises_is_refused_as_one() -> None:
    with pytest.raises(InvalidRequestError, match=r"json_schema is .* raises ZeroDivisionError"):
        schema_text(Trap())


class Endless(dict[str, int]):
    def items(self) -> Any:
        return ((str(i), i) for i in iter(int, 1))


class EndlessList(list[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(int, 1)


def test_what_json_has_is_written_as_json_does() -> None:
    value = {"a": [1, 2.5, None, True, "\u00e9"], "b": OrderedDict(c=(1, [])), "d": {}, "5": {}}
    assert bounded_json(value, 100) == json.dumps(value, ensure_ascii=False)
    assert (
        bounded_json({"x": Endless(a=1), "y": EndlessList([1])}, 99) == '{"x": {"a": 1}, "y": [1]}'
    )
    for bad in ({"a": object()}, {"a": {1}}, {("a",): 1}):
        with pytest.raises(TypeError):
            bounded_json(bad, 100)


def wide(n_levels: int) -> Any:
    """Few objects, and endlessly many when they are counted one by one."""
    value: list[Any] = ["x"]
    for _ in range(n_levels):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "value",
    [wide(60), ["x" * 10_000] * 10_000, [10**4000] * 100_000, {"k" * 2000: 1}, [[[]] * 2000]],
    ids=lambda value: type(value).__name__,
)
def test_it_ends_early(value: Any) -> None:
    with pytest.raises(TooLargeError, match="more than 1000 characters"):
        bounded_json({"enum": value}, 1000)

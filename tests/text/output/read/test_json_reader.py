from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybatcher.text.output.read.json_reader import (
    MAX_DEPTH,
    check_plain,
    json_text,
    plain_object,
    read_value,
)
from pybatcher.text.output.read.source import MalformedCallError, TextSource

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def taken(text: str) -> str:
    """The text of the value that a text begins with, read character by character."""
    source = TextSource()
    source.record()
    reading = read_value(source)
    try:
        for character in text:
            source.feed(character)
            next(reading)
        source.ended = True
        next(reading)
    except StopIteration:
        pass
    return source.recorded()


@settings(deadline=None)
@given(values, st.booleans(), st.sampled_from([None, 2]))
def test_takes_exactly_one_value(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert taken(text + " ]}x") == text


@settings(deadline=None)
@given(st.text(alphabet='{}[]",:\\ntrue1.-e ', max_size=12))
def test_agrees_with_json_about_what_a_value_is(text: str) -> None:
    try:
        whole = json.loads(text) is not ...
    except ValueError:
        whole = False
    try:
        read = taken(text.strip()) == text.strip()
    except MalformedCallError:
        read = False
    assert read is whole


@pytest.mark.parametrize("text", ["", "tru", "nul", '"a', "[1", "{", '{"a"', '{"a":', "[1,]", "+1"])
def test_what_is_no_value_is_malformed(text: str) -> None:
    with pytest.raises(MalformedCallError):
        taken(text)


def test_an_escape_ends_at_its_first_wrong_digit() -> None:
    with pytest.raises(MalformedCallError, match="unknown escape"):
        taken('"\\u1g')
    with pytest.raises(MalformedCallError, match="ends in the middle"):
        taken('"\\u1')


def test_nesting_has_an_end() -> None:
    assert taken("[" * MAX_DEPTH + "]" * MAX_DEPTH) == "[" * MAX_DEPTH + "]" * MAX_DEPTH
    with pytest.raises(MalformedCallError, match="levels deep"):
        taken("[" * (MAX_DEPTH + 1))


def test_an_object_is_an_object() -> None:
    assert plain_object('{"a": [1, "é"]}') == {"a": [1, "é"]}
    for text in ("[]", "1", '{"a": Infinity}', '{"a": "\\udfff"}'):
        with pytest.raises(MalformedCallError):
            plain_object(text)


@pytest.mark.parametrize(
    "value", [b"x", {1: 2}, {"a": (1,)}, float("nan"), "\ud800", {"\ud800": 1}]
)
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(MalformedCallError):
        check_plain(value)


def test_a_value_has_its_text() -> None:
    assert json_text({"é": [1, None]}) == '{"é": [1, null]}'
    with pytest.raises(MalformedCallError, match="without JSON text"):
        json_text(10**5000)

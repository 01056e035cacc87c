"""Texts of JSON in slices: what `json.loads` makes of them, whatever the slices are."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from pybatcher.http import json_slices
from pybatcher.http.json_slices import TooManyValuesError, read_json

PIECES = 'ab"\\\n\u00e9\U0001f600\ud83d\udc00 {}[],:'
WHOLE = 10**9


@pytest.fixture(params=[32, 200])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that are smaller than most values."""
    monkeypatch.setattr(json_slices, "_SLICE", request.param)


def some_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(9 if depth < 6 else 5)
    if kind == 0:
        return chance.choice([True, False, None, 0, -1, 1.5, 1e300])
    if kind < 3:
        return "".join(chance.choice(PIECES) for _ in range(chance.randrange(40)))
    if kind < 5:
        return chance.choice([chance.randrange(10**6), "x" * chance.randrange(300)])
    members = [some_value(chance, depth + 1) for _ in range(chance.randrange(8))]
    return members if kind < 7 else {f'{i % 5}"\\': member for i, member in enumerate(members)}


def damaged(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    new = chance.choice([b"", b'"', b",", b"[", b"}", b"\\", b"\0", b"1", b"\xff"])
    return data[:at] + new + data[at + chance.randrange(2) :]


def outcome(read: Callable[[], Any]) -> str:
    """What comes of reading, as text: lone surrogates and the kinds of numbers are seen in it."""
    try:
        return ascii(read())
    except (ValueError, RecursionError) as error:
        return "RecursionError" if isinstance(error, RecursionError) else "ValueError"


def in_parts(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def same(data: bytes) -> None:
    expected = outcome(lambda: json.loads(data))
    for size in (WHOLE, 7):
        found = outcome(lambda size=size: read_json(in_parts(data, size), WHOLE))  # type: ignore[misc]
        assert found == expected, (size, data)


@pytest.mark.usefixtures("slices")
def test_a_text_has_the_value_that_json_gives_it() -> None:
    chance = random.Random(1)
    for i in range(20):
        text = json.dumps(some_value(chance), ensure_ascii=i % 2 == 0, indent=[None, 1][i % 3 > 1])
        data = text.encode("utf-8", "surrogatepass")
        same(data)
        same(damaged(chance, data))


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize(
    "text",
    ["", " ", "1", "nul", '"', '"\\', '"\\u12', "{", "[1", "[1,", "[,1]", "[1,]", '{"a":1,}', "-"]
    + ["NaN", "-Infinity", "1 2", "[]]", '{"a" 1}', "{1:2}", '["a\nb"]', '["\\x"]', '{"a":1 "b":2}']
    + [f'["{100 * "x"}{end}' for end in ("", "\\", "\\u12", "\n", '\\ud83d"]', '\\udc00"] 1')],
)
def test_odd_texts_are_what_they_are_to_json(text: str) -> None:
    same(text.encode())


@pytest.mark.parametrize("coding", ["utf-16", "utf-32", "utf-8-sig", "utf-16-le", "utf-32-be"])
def test_other_codings_are_read(coding: str) -> None:
    same('{"é": ["😀", "x"]}'.encode(coding))


def test_values_are_counted_as_they_come() -> None:
    data = b"[" + b"[]," * 100 + b"1]"
    assert read_json([data], 201) == [[]] * 100 + [1]
    with pytest.raises(TooManyValuesError):
        read_json([data], 200)


def test_a_number_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="a number has more than 16384 characters"):
        read_json([b'{"a": 0.' + b"0" * 50_000 + b"}"], WHOLE)


def test_depth_is_refused_and_costs_no_more_than_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecursionError):
        read_json([b"[" * 100_000], WHOLE)
    in_vain = 0

    def counting(text: str, at: int) -> Any:
        nonlocal in_vain
        try:
            return scan(text, at)
        except ValueError:
            in_vain += len(text) - at
            raise

    made = json_slices._Reader([b"[" * 200 + b"1," * 50_000 + b"1" + b"]" * 200], WHOLE)
    scan = made._scan
    monkeypatch.setattr(made, "_scan", counting)
    value = made.whole()
    assert in_vain < 100_400 + 8 * 2**14  # and not 16 KiB for each of its 200 levels
    for _ in range(199):
        (value,) = value
    assert value == [1] * 50_001

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from pybatcher.params.bounded_json import TooLargeError, bounded_json


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

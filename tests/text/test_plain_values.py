from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from pybatcher.errors import InvalidRequestError
from pybatcher.text.plain_values import PlainReader


def test_values_become_plain() -> None:
    value = OrderedDict(a=(1, np.float32(0.5)), b=[None, True, "x"], c=np.int64(3))
    plain = PlainReader("it is too large").value(value, "v", 0)
    assert plain == {"a": [1, 0.5], "b": [None, True, "x"], "c": 3}
    assert [type(one) for one in (plain, plain["a"], plain["c"])] == [dict, list, int]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [object()]}, r"v.a\[0\] is object"),
        ({7: 7}, "v is dict with the field 7"),
        ({"a": "\ud800"}, "v.a is .* lone surrogate"),
        ({"a": {"b\ud800": 1}}, r"v.a is dict with the field 'b\\ud800'; .* valid Unicode"),
        ([0] * 20, "too many: it is too large"),
        ("x" * 2000, "it is too large"),
        ({"a": 2**4096}, "v.a is a whole number of 4097 bits; it must have at most 4096"),
    ],
)
def test_other_values_are_named(value: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        PlainReader("it is too large", most=16).value(value, "v", 0)


def test_nesting_has_an_end() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidRequestError, match="nested more than 32 levels deep"):
        PlainReader("it is too large").value(value, "v", 0)


def test_what_is_within_another_counts_there_too() -> None:
    together = PlainReader("they are too large", most=16)
    for _ in range(2):
        PlainReader("it is too large", most=16, within=together).value([0] * 7, "v", 0)
    with pytest.raises(InvalidRequestError, match="too many: they are too large"):
        PlainReader("it is too large", most=16, within=together).value(0, "v", 0)

from __future__ import annotations

from typing import Any

import pytest
from jinja2.utils import Namespace

from pybatcher.text.metering import METER, Meter, TemplateLimitError


def left(meter: Meter) -> int:
    """How many units the meter still has, found from outside."""
    low, high = 0, 2**62
    while low < high:
        middle = (low + high + 1) // 2
        try:
            meter.spend(middle)
        except TemplateLimitError:
            high = middle - 1
        else:
            low = middle
        meter.spend(-middle)
    return low


def cost(value: Any) -> int:
    meter = Meter([])
    before = left(meter)
    meter.spend_value(value)
    return before - left(meter)


@pytest.mark.parametrize(
    ("value", "units"),
    [
        (None, 1),
        (5, 1),
        ("", 1),
        ("x" * 6400, 101),
        ([], 1),
        ([1, 2, 3], 4 + 3),
        ((1, (2, 3)), 3 + 1 + 3 + 2),
        ({"a": 1, "b": [2]}, 5 + 2 + 1 + 2 + 1),
        ({"a": 1}.items(), 2 + 3 + 2),
        (range(1000), 1001),
        (Namespace(a=1), 3 + 2),
    ],
)
def test_what_a_value_costs(value: Any, units: int) -> None:
    assert cost(value) == units


def test_a_shared_value_costs_as_often_as_it_is_there() -> None:
    once = cost(["x" * 640])
    inner = ["x" * 640]
    assert cost([inner, inner, inner]) == 4 + 3 * once


def test_what_contains_itself_costs_more_than_there_is() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TemplateLimitError):
        Meter([]).spend_value(endless)


def test_a_longer_input_may_cost_more() -> None:
    short, long = left(Meter([])), left(Meter(["x" * 6400]))
    assert short == 200_000 + 64
    assert long == 200_000 + 64 * (2 + 101)


def test_spending() -> None:
    meter = Meter([])
    meter.spend(left(meter))
    with pytest.raises(TemplateLimitError, match="does not come to an end"):
        meter.spend(1)


def test_no_meter_is_set_outside_a_rendering() -> None:
    with pytest.raises(LookupError):
        METER.get()

"""Limits of a connection: what cannot work is refused where it is made."""

from __future__ import annotations

from typing import Any

import pytest

from pybatcher.errors import ConfigError
from pybatcher.sidecar.protocol.limits import Limits


def test_the_defaults_are_those_of_the_contract() -> None:
    limits = Limits()
    assert limits.max_frame == 16 * 1024 * 1024
    assert limits.max_depth == 32
    assert limits.max_in_flight == 1024


def test_a_map_and_a_frame_are_limited_by_what_an_array_is() -> None:
    limits = Limits(max_elements=1600)
    assert (limits.max_pairs, limits.max_weight) == (100, 3200)


@pytest.mark.parametrize("name", ["max_frame", "max_depth", "max_in_flight", "max_elements"])
@pytest.mark.parametrize("value", [0, -1, 2**40, True, 64.0, "64", None])
def test_a_limit_that_cannot_work_is_named_with_its_value(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} is {value!r}; it must be a whole number"):
        Limits(**{name: value})


def test_a_request_may_be_less_than_an_answer() -> None:
    limits = Limits(max_elements=4000, max_depth=7)
    assert (limits.of_requests.max_elements, limits.of_requests.max_depth) == (1000, 7)
    assert Limits(max_elements=64).of_requests.max_elements == 64

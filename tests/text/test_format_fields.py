from __future__ import annotations

import pytest

from pybatcher.text.format_fields import check_field, foresee_percents, percent_fields
from pybatcher.text.metering import Meter, TemplateLimitError


@pytest.mark.parametrize("field", ["", ">99", "+.12f", "%-05"])
def test_narrow_fields_are_fine(field: str) -> None:
    check_field(field)


@pytest.mark.parametrize("field", [">100", "%0999", "*", "{w}"])
def test_wide_and_computed_fields_are_refused(field: str) -> None:
    with pytest.raises(TemplateLimitError, match="widths go up to 99"):
        check_field(field)


def test_fields_are_found() -> None:
    assert percent_fields("100%% of %-12d, %(a)s") == [
        *("%", "% ", "%-12", "%("),
        ")",
    ]


def test_the_width_of_a_named_field_is_found() -> None:
    assert percent_fields("%((a))-099d (12345)")[1:] == [")", ")-099", ")"]


def test_every_field_costs_all_values() -> None:
    foresee_percents(Meter([]), "%s" * 100, ["a" * 9999])
    with pytest.raises(TemplateLimitError, match="does not come to an end"):
        foresee_percents(Meter([]), "%s" * 10_000, ["a" * 9999])

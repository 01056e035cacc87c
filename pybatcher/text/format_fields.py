"""Fields of format texts: how wide they may be, and what writing them costs."""

from __future__ import annotations

import re
from typing import Any

from .metering import Meter, TemplateLimitError

__all__ = ["check_field", "foresee_fields", "foresee_percents", "percent_fields"]

_UNITS_OF_FIELD = 8
_WIDE_FIELD = re.compile(r"\d{3,}|\*|\{")  # a width of 100 or more, or a computed one


def check_field(field: str) -> None:
    """Refuse a wide field. Raises TemplateLimitError."""
    if _WIDE_FIELD.search(field):
        raise TemplateLimitError(f"it formats a field {field!r}; widths go up to 99")


def percent_fields(pattern: str) -> list[str]:
    """Return the beginnings of the % fields of a text: the sign, flags and a width.

    In a text with names, flags and a width follow a parenthesis, which need not be a name's last.
    """
    fields = re.findall(r"%[^a-zA-Z%]*", pattern)
    return fields + (re.findall(r"\)[-+ #0]*[\d.*]*", pattern) if "%(" in pattern else [])


def foresee_percents(meter: Meter, pattern: str, values: Any) -> None:
    """Check a text with % fields, and count its result before it is made."""
    for field in percent_fields(pattern):
        check_field(field)
    foresee_fields(meter, pattern.count("%"), values)


def foresee_fields(meter: Meter, n_fields: int, values: Any) -> None:
    """Count all values once for each field, since each field may write them all.

    A field that writes a number may be a few hundred characters long.
    """
    for _ in range(n_fields):
        meter.spend(_UNITS_OF_FIELD)
        meter.spend_value(values)

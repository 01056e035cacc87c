"""`PlainReader`: copies a caller's values as plain data. `plain_json`: reads JSON as such data."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from ..errors import InvalidRequestError
from ..errors.checks import REQUEST, plain_float, plain_int, plain_text, short, type_name

__all__ = ["PlainReader", "is_unicode", "plain_json"]

_MAX_DEPTH = 32
_MAX_BITS = 4096  # bits of a whole number; Python refuses to write numbers of thousands of digits
_MAX_DIGITS = 1234  # digits of a whole number of that many bits
_CHARACTERS_PER_UNIT = 64
_SHORT_NAME = 32  # characters of a name that errors show as it is


class PlainReader:
    """Copies values of the kinds that JSON has, a bounded number of them.

    Without the bound, lists that contain each other many times over would take very long.

    too_large: the error's text if there are more than `most` units: each value is a unit, and so
        are 64 characters.
    within: the reader of the whole that these values are a part of; they count there too.
    """

    def __init__(
        self, too_large: str, *, most: int = 2**20, within: PlainReader | None = None
    ) -> None:
        self._too_large = too_large
        self._left = most
        self._within = within

    def mapping(self, value: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
        """Return a mapping as a dictionary. Raises InvalidRequestError."""
        plain = {}
        for key, one in value.items():
            name = plain_text(key)
            if name is None or not is_unicode(name):
                raise InvalidRequestError(
                    f"{where} is {type_name(value)} with the field {short(key)}; "
                    "field names must be texts of valid Unicode",
                    field=where,
                )
            self._spend(name, where)
            told = name if len(name) <= _SHORT_NAME and name.isidentifier() else short(name)[1:-1]
            plain[name] = self.value(one, f"{where}.{told}", depth + 1)
        return plain

    def value(self, value: object, where: str, depth: int) -> Any:
        """Return a value as plain data. Raises InvalidRequestError."""
        if depth > _MAX_DEPTH:
            raise InvalidRequestError(
                f"{where} is nested more than {_MAX_DEPTH} levels deep", field=where
            )
        text = plain_text(value)
        self._spend(text or "", where)
        if text is not None:
            REQUEST.unicode(where, text)
            return text
        if value is None or type(value) in (float, bool):
            return value
        if type(value) is int:
            return _bounded(value, where)
        if isinstance(value, (list, tuple)):  # before the test for an abstract class, which is slow
            return [self.value(one, f"{where}[{i}]", depth + 1) for i, one in enumerate(value)]
        if isinstance(value, (dict, Mapping)):
            return self.mapping(value, where, depth)
        whole = plain_int(value)
        if whole is not None:
            return _bounded(whole, where)
        number = plain_float(value)
        if number is not None:
            return number
        raise InvalidRequestError(
            f"{where} is {type_name(value)}; it must be made of texts, numbers, lists and mappings",
            field=where,
        )

    def _spend(self, text: str, where: str) -> None:
        units = 1 + len(text) // _CHARACTERS_PER_UNIT
        reader: PlainReader | None = self
        while reader is not None:
            reader._left -= units
            if reader._left < 0:
                raise InvalidRequestError(
                    f"{where} is one value too many: {reader._too_large}", field=where
                )
            reader = reader._within


def is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bounded(number: int, where: str) -> int:
    if number.bit_length() > _MAX_BITS:
        raise InvalidRequestError(
            f"{where} is {short(number)}; it must have at most {_MAX_BITS} bits", field=where
        )
    return number


def plain_json(text: str) -> Any:
    """Return the value of a JSON text. A number that neither a double nor a whole number of 4096
    bits can hold becomes the largest double of its sign.

    Raises ValueError for any other text, also for NaN and Infinity; RecursionError.
    """
    return json.loads(text, parse_float=_finite, parse_int=_whole, parse_constant=_refuse)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else math.copysign(sys.float_info.max, number)


def _whole(text: str) -> int | float:
    digits = text.removeprefix("-")
    if len(digits) <= _MAX_DIGITS and (number := int(text)).bit_length() <= _MAX_BITS:
        return number
    return -sys.float_info.max if text.startswith("-") else sys.float_info.max


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")

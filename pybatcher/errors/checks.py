"""Checks of values that come from outside: numbers, flags, texts and choices.

A value may be of any type, and its methods may raise or return anything. Each check returns a plain
`int`, `float`, `bool` or `str`, or raises the error of its `Checks`, and nothing else. NumPy
scalars count as numbers; True and False do not.
"""

from __future__ import annotations

import numbers
import operator
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from . import ConfigError, InvalidRequestError, PybatcherError

__all__ = [
    "LONGEST_NAME",
    "OPTION",
    "REQUEST",
    "Checks",
    "field_error",
    "plain_float",
    "plain_int",
    "plain_text",
    "short",
    "type_name",
]

LONGEST_NAME = 1024
"""The most characters of a namespace and of a prefix's name, which are kept for long."""

_MOST_SHOWN = 300  # characters of a value in an error
_TEXTS = (str, bytes, bytearray, memoryview)
_MOST_BITS_SHOWN = 256  # Python refuses to write out very long integers


class _Repr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = 80

    def _repr_whole(self, x: int, level: int) -> str:
        if x.bit_length() > _MOST_BITS_SHOWN:
            return f"a whole number of {x.bit_length()} bits"
        return super().repr_int(x, level)

    def _repr_bytes(self, x: bytes | bytearray, level: int) -> str:
        shown = repr(x[: self.maxother])
        return shown if len(x) <= self.maxother else f"{shown}... ({len(x)} bytes)"

    # reprlib finds these methods by the names of the types. They have no `@override`, which would
    # be an import from outside the standard library.
    repr_int = _repr_whole
    repr_bytes = repr_bytearray = _repr_bytes


_REPR = _Repr()


def short(value: object) -> str:
    """Return a value for an error message: at most 300 characters of valid Unicode."""
    try:
        text = _REPR.repr(value)
    except Exception:  # a `__repr__`, `__len__` or `__iter__` that raises
        text = f"an object of type {type_name(value)}"
    return text[:_MOST_SHOWN].encode("utf-8", "backslashreplace").decode()


def type_name(value: object) -> str:
    """Return the name of a value's type."""
    try:
        return str(type(value).__name__)
    except Exception:  # a metaclass may define `__name__`
        return "unknown"


def plain_int(value: object) -> int | None:
    """Return a whole number as `int`; None for anything else, also for True and False."""
    if type(value) is int:
        return value
    try:
        if isinstance(value, bool):
            return None
        return int.__int__(operator.index(value))  # type: ignore[arg-type]
    except Exception:
        return None


def plain_float(value: object) -> float | None:
    """Return a number as `float`; None for anything else and for numbers out of range."""
    if type(value) is float:
        return value
    try:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return None
        return float(value)
    except Exception:
        return None


def plain_text(value: object) -> str | None:
    """Return a text as `str`, whatever its class overrides; None for anything else."""
    if type(value) is str:
        return value
    try:
        return str.__str__(value) if isinstance(value, str) else None
    except Exception:
        return None


def _plain_bool(value: object) -> bool | None:
    if value is True or value is False:
        return value
    kind = type(value)
    try:
        if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):
            return bool(value)
    except Exception:  # a metaclass may define `__module__` and `__name__`
        return None
    return None


def field_error(kind: type[PybatcherError], name: str, fault: str) -> PybatcherError:
    """Return an error whose message is the name and the fault, and whose `field` is the name.

    name: the name of a field, or a description such as "a key of logit_bias", which is no `field`.
    """
    is_field = name[:1].islower() and " " not in name
    return kind(f"{name} {fault}", field=name if is_field else None)


@dataclass(frozen=True, slots=True)
class Checks:
    """Checks that raise `error`. The argument `name` of each is the value's name in the message."""

    error: type[PybatcherError]

    def bad(self, name: str, value: object, wanted: str) -> PybatcherError:
        """Return the error for a value that is not `wanted`."""
        return field_error(self.error, name, f"is {short(value)}; it must be {wanted}")

    def whole(self, name: str, value: object, low: int, high: int, wanted: str = "") -> int:
        """Return a whole number from `low` to `high`."""
        found = plain_int(value)
        if found is None or not low <= found <= high:
            raise self.bad(name, value, wanted or f"a whole number from {low} to {high}")
        return found

    def number(
        self,
        name: str,
        value: object,
        low: float,
        high: float,
        *,
        above: bool = False,
        wanted: str = "",
    ) -> float:
        """Return a number from `low` to `high`, without `low` itself where `above` is True."""
        found = plain_float(value)
        if found is None or not low <= found <= high or (above and found == low):
            begin, end = ("above", "and at most") if above else ("from", "to")
            raise self.bad(name, value, wanted or f"a number {begin} {low:g} {end} {high:g}")
        return found

    def flag(self, name: str, value: object) -> bool:
        """Return True or False. A number is neither."""
        found = _plain_bool(value)
        if found is None:
            raise self.bad(name, value, "True or False")
        return found

    def text(
        self,
        name: str,
        value: object,
        wanted: str = "a str",
        *,
        may_be_empty: bool = True,
        most: int | None = None,
    ) -> str:
        """Return a text that UTF-8 can encode, of at most `most` characters."""
        found = plain_text(value)
        if found is None or not (found or may_be_empty):
            raise self.bad(name, value, wanted)
        if most is not None and len(found) > most:
            raise field_error(
                self.error, name, f"has {len(found)} characters; it must have at most {most}"
            )
        self.unicode(name, found)
        return found

    def unicode(self, name: str, text: str) -> None:
        """Refuse a text with a lone surrogate, which UTF-8 cannot encode."""
        if text.isascii():
            return
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise field_error(
                self.error,
                name,
                f"is {short(text)}, with a lone surrogate at index {error.start}; it must "
                "be valid Unicode",
            ) from None

    def choice(self, name: str, value: object, choices: tuple[Any, ...], wanted: str = "") -> Any:
        """Return one of `choices`, which are texts or whole numbers."""
        found: str | int | None = plain_text(value)
        if found is None:
            found = plain_int(value)
        if found is None or found not in choices:
            raise self.bad(name, value, wanted or "one of " + ", ".join(map(repr, choices)))
        return found

    def function(self, name: str, value: Any) -> Any:
        """Return a function, or None."""
        if value is None or callable(value):
            return value
        raise self.bad(name, value, "a function, or None")

    def items(self, name: str, value: object, most: int, wanted: str) -> tuple[Any, ...]:
        """Return at most `most` items of a list, a tuple or another sequence, not of a text."""
        with self.reading(name, value, wanted):
            if not isinstance(value, Sequence) or isinstance(value, _TEXTS) or len(value) > most:
                raise self.bad(name, value, wanted)
            # the iterator may return more items than `len`
            return tuple(islice(iter(value), len(value)))

    def pairs(self, name: str, value: object, most: int, wanted: str) -> list[tuple[Any, Any]]:
        """Return at most `most` pairs of key and value of a mapping."""
        with self.reading(name, value, wanted):
            if not isinstance(value, Mapping) or len(value) > most:
                raise self.bad(name, value, wanted)
            return list(islice(value.items(), len(value)))

    @contextmanager
    def reading(self, name: str, value: object, wanted: str) -> Iterator[None]:
        """Turn exceptions of a value's own methods into an error that names the value."""
        try:
            yield
        except PybatcherError:
            raise
        except Exception as error:
            raise field_error(
                self.error,
                name,
                f"is {short(value)}, which raises {type_name(error)} when it is read; "
                f"it must be {wanted}",
            ) from error


REQUEST = Checks(InvalidRequestError)
"""Checks of the arguments of calls. They raise InvalidRequestError."""

OPTION = Checks(ConfigError)
"""Checks of the options of batchers and clients. They raise ConfigError."""

"""`Fields`: reads received values. For every bad value it raises one type of error.

A peer may be any program: a text may come as bytes (old MessagePack libraries have no other kind),
    a float as a whole number, and any value in any place.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ...errors import InvalidRequestError, ProtocolError, PybatcherError
from ...errors.checks import Checks, field_error, plain_float, plain_int, short

__all__ = ["ANSWERED", "ASKED", "Fields", "short"]

# Sets of types, to check all elements of a list at once: every token of a stream is read here.
_WHOLE, _FLOAT, _TEXT = frozenset({int}), frozenset({float}), frozenset({str})
_NO_ARRAYS = frozenset({int, str, list, tuple})
_NO_LISTS = (bytearray, memoryview, array)
_DEEPEST = 32  # levels of lists and maps inside a message
_MOST_IN_FLOAT = 2**1023
_MOST_VALUES = 2**17
_MOST_IDS = 2**24  # each id takes at least a byte of a message
_BYTES = (bytes, bytearray, memoryview)
_PLAIN = "made of maps, lists, texts and numbers"


@dataclass(frozen=True, slots=True)
class Fields:
    """Reads values of expected kinds. error: the only type that is raised."""

    error: type[PybatcherError]

    def bad(self, name: str, value: object, wanted: str) -> PybatcherError:
        """Return the error for a value of an unexpected kind."""
        return field_error(self.error, name, f"is {short(value)}; it must be {wanted}")

    def text(self, value: object, name: str) -> str:
        """Return a text; UTF-8 bytes are decoded."""
        if isinstance(value, str):
            if value.isascii():
                return value
            try:
                value.encode()
            except UnicodeEncodeError:
                raise field_error(
                    self.error, name, f"is {short(value)}, which is not valid UTF-8"
                ) from None
            return value
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise field_error(
                    self.error, name, f"is {short(value)}, which is not valid UTF-8"
                ) from None
        raise self.bad(name, value, "a text")

    def flag(self, value: object, name: str) -> bool:
        """Return a truth value."""
        if isinstance(value, bool):
            return value
        raise self.bad(name, value, "true or false")

    def whole(self, value: object, name: str, least: int = 0) -> int:
        """Return a whole number of at least `least`."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        raise self.bad(name, value, f"a whole number, {least} or more")

    def number(self, value: object, name: str) -> float:
        """Return a number as a float."""
        if isinstance(value, float):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST_IN_FLOAT:
            return float(value)
        raise self.bad(name, value, "a number")

    def items(self, value: object, name: str) -> Sequence[Any]:
        """Return a list or tuple."""
        if type(value) is list or type(value) is tuple:  # extension types are named tuples
            return value
        raise self.bad(name, value, "a list")

    def wholes(self, value: object, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers of at least 0 (token ids) as a tuple."""
        found = tuple(self.items(value, name))
        if _WHOLE.issuperset(map(type, found)) and (not found or min(found) >= 0):
            return found
        bad = next(i for i, one in enumerate(found) if type(one) is not int or one < 0)
        raise self.bad(f"{name}[{bad}]", found[bad], "a whole number, 0 or more")

    def numbers(self, value: object, name: str) -> tuple[float, ...]:
        """Return a list of numbers as floats."""
        found = self.items(value, name)
        if _FLOAT.issuperset(map(type, found)):
            return tuple(found)
        return tuple(self.number(one, f"{name}[{i}]") for i, one in enumerate(found))

    def map(self, value: object, name: str) -> dict[str, Any]:
        """Return a map whose keys are texts. The caller must not change it."""
        if type(value) is dict and _TEXT.issuperset(map(type, value)):
            return value
        if not isinstance(value, Mapping):
            raise self.bad(name, value, "a map")
        return {self.text(key, f"a key of {name}"): one for key, one in value.items()}

    def plain(self, value: object, name: str) -> Any:
        """Return a value that is made of maps, lists, texts, numbers, truth values and null only.

        For received values and for values to be sent. At most 2**17 values, since reading them
        delays all other clients; lists and maps are refused before they are read.
        """
        with Checks(self.error).reading(name, value, _PLAIN):
            return self._plain(value, name, 0, _Budget())

    def _plain(self, value: object, name: str, depth: int, budget: _Budget) -> Any:
        if depth > _DEEPEST:
            raise field_error(
                self.error, name, f"is deeper than {_DEEPEST} lists and maps in each other"
            )
        match value:
            case None | bool():
                return value
            case str() | bytes():
                return self.text(value, name)
            case Mapping():
                self._spend(value, name, budget)
                fields = self.map(value, name)
                for key in fields:
                    if not key.isascii():
                        self._check_key(key, name)
                return {
                    key: one
                    if _is_simple(one)
                    else self._plain(one, f"{name}.{key}", depth + 1, budget)
                    for key, one in fields.items()
                }
            case Sequence() if not isinstance(value, _NO_LISTS) and not hasattr(value, "_fields"):
                self._spend(value, name, budget)
                return [
                    one if _is_simple(one) else self._plain(one, f"{name}[{i}]", depth + 1, budget)
                    for i, one in enumerate(islice(iter(value), len(value)))
                ]
        whole = plain_int(value)
        if whole is not None and -(2**63) <= whole < 2**64:
            return whole
        number = plain_float(value)
        if number is None or whole is not None:
            wanted = "a number of 64 bits" if whole is not None else _PLAIN
            raise self.bad(name, value, wanted)
        return number

    def _spend(self, value: Sized, name: str, budget: _Budget) -> None:
        if not budget.spend(len(value)):
            raise field_error(
                self.error,
                name,
                f"has {len(value)} values, which are too many: with all others there may be "
                f"{_MOST_VALUES}",
            )

    def _check_key(self, key: str, name: str) -> None:
        try:
            key.encode()
        except UnicodeEncodeError:
            raise field_error(
                self.error, name, f"has the key {short(key)}, which is not valid UTF-8"
            ) from None

    def prompt(self, value: object, name: str) -> str | list[Any]:
        """Return a prompt, sent or to be sent: a text, or a list of whole numbers of 32 bits."""
        if isinstance(value, (str, bytes)):
            return self.text(value, name)
        return self.token_ids(value, name, "a text or a list of token ids")

    def listed(self, value: object, name: str) -> Any:
        """Return a numpy array or a tensor as a list, and anything else unchanged.

        An array may claim more items than fit into memory.
        """
        if type(value) in _NO_ARRAYS:
            return value
        with Checks(self.error).reading(name, value, "a list of token ids"):
            if not hasattr(value, "tolist"):
                return value
            shape = getattr(value, "shape", ())
            if math.prod(shape) > _MOST_IDS:
                raise field_error(
                    self.error, name, f"has {math.prod(shape)} items, too many for a message"
                )
            return value.tolist()

    def token_ids(self, value: object, name: str, wanted: str = "a list of token ids") -> list[Any]:
        """Return token ids, received or to be sent, without comparing them with a vocabulary."""
        with Checks(self.error).reading(name, value, wanted):
            value = self.listed(value, name)
            if not isinstance(value, Sequence) or isinstance(value, (str, *_BYTES)):
                raise self.bad(name, value, wanted)
            if len(value) > _MOST_IDS:
                raise field_error(
                    self.error, name, f"has {len(value)} token ids, too many for a message"
                )
            items = list(islice(iter(value), len(value)))
        try:
            kinds = set(map(type, items))
            if bool in kinds:
                raise TypeError
            numbers = array("i", items)
            return items if kinds == {int} else numbers.tolist()
        except Exception:  # an `__index__` may raise anything
            wanted = "a token id, a whole number below 2**31"
            ids = list(map(plain_int, items))
        for i, one in enumerate(ids):
            if one is None or not -(2**31) <= one < 2**31:
                raise self.bad(f"{name}[{i}]", items[i], wanted)
        return ids


class _Budget:
    """The number of values that may still be read."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def spend(self, count: int) -> bool:
        """Count values. Return False if there are too many."""
        self._left -= count
        return self._left >= 0


def _is_simple(value: object) -> bool:
    """Return whether a value is of the commonest kinds, which need no conversion."""
    kind = type(value)
    if kind is str:
        return str.isascii(value)  # type: ignore[arg-type]
    if kind is int:
        return -(2**63) <= value < 2**64  # type: ignore[operator]
    return kind is float or kind is bool or value is None


ASKED = Fields(InvalidRequestError)
"""Reads values that a client has sent. Raises InvalidRequestError."""

ANSWERED = Fields(ProtocolError)
"""Reads values that a server has sent. Raises ProtocolError."""

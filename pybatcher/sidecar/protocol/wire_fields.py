"""`Fields`: reads values that a peer has sent. For any value it raises one type of error only.

A peer may be any program: a text may come as bytes (old MessagePack libraries have no other
kind), a number with a fraction as a whole one, and anything in any place.
"""

from __future__ import annotations

import reprlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from ...errors import InvalidRequestError, ProtocolError, PybatcherError

__all__ = ["ANSWERED", "ASKED", "Fields", "short"]

# Kinds, to look at all elements of a list at once: each token of a stream comes by here.
_WHOLE, _FLOAT, _TEXT = frozenset({int}), frozenset({float}), frozenset({str})
_NO_LISTS = (bytearray, memoryview, array)
_DEEPEST = 32  # levels of lists and maps inside a message
_MOST_IN_FLOAT = 2**1023


class _Short(reprlib.Repr):
    """A repr that is short for any value: for numbers of any length and maps of any kind too."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    @override
    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > 256:  # Python refuses to write out very long ones
            return f"a whole number of {x.bit_length()} bits"
        return super().repr_int(x, level)


_SHORT = _Short()


def short(value: object) -> str:
    """Return a short repr of a value, for an error message."""
    return _SHORT.repr(value)


@dataclass(frozen=True, slots=True)
class Fields:
    """Reads values of the kinds that are wanted. error: the only type that is raised."""

    error: type[PybatcherError]

    def bad(self, name: str, value: object, wanted: str) -> PybatcherError:
        """Return the error for a value of another kind than wanted."""
        return self.error(f"{name} is {short(value)}; it must be {wanted}")

    def text(self, value: object, name: str) -> str:
        """Return a text; UTF-8 bytes are decoded."""
        if isinstance(value, str):
            if value.isascii():
                return value
            try:
                value.encode()
            except UnicodeEncodeError:
                raise self.error(f"{name} is {short(value)}, which is not valid UTF-8") from None
            return value
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise self.error(f"{name} is {short(value)}, which is not valid UTF-8") from None
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
        if type(value) is list or type(value) is tuple:  # extension types are tuples with names
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

    def plain(self, value: object, name: str, depth: int = 0) -> Any:
        """Return a value that is made of maps, lists, texts, numbers, truth values and None only.

        For both directions: what was received becomes plain Python, what is sent can be sent.
        """
        if depth > _DEEPEST:
            raise self.error(f"{name} is deeper than {_DEEPEST} lists and maps in each other")
        match value:
            case None | bool() | float():
                return value
            case int():
                if -(2**63) <= value < 2**64:
                    return value
                raise self.bad(name, value, "a number of 64 bits")
            case str() | bytes():
                return self.text(value, name)
            case Mapping():
                fields = self.map(value, name)
                return {
                    key: self.plain(one, f"{name}.{key}", depth + 1) for key, one in fields.items()
                }
            case Sequence() if not isinstance(value, _NO_LISTS) and not hasattr(value, "_fields"):
                return [self.plain(one, f"{name}[{i}]", depth + 1) for i, one in enumerate(value)]
        raise self.bad(name, value, "made of maps, lists, texts and numbers")

    def prompt(self, value: object, name: str) -> str | list[Any]:
        """Return a prompt, sent or to be sent: a text, or a list of whole numbers of 32 bits."""
        if isinstance(value, (str, bytes)):
            return self.text(value, name)
        return self.token_ids(value, name, "a text or a list of token ids")

    def token_ids(self, value: object, name: str, wanted: str = "a list of token ids") -> list[Any]:
        """Return token ids, sent or to be sent. Whether the model has them is checked elsewhere."""
        if hasattr(value, "tolist"):  # numpy arrays and torch tensors, on the sending side
            value = value.tolist()
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
            raise self.bad(name, value, wanted)
        try:
            if bool in set(map(type, value)):
                raise TypeError
            return array("i", value).tolist()
        except (TypeError, OverflowError):
            bad = next(i for i, one in enumerate(value) if not _is_token_id(one))
        raise self.bad(f"{name}[{bad}]", value[bad], "a token id, a whole number below 2**31")


def _is_token_id(value: object) -> bool:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return False
    return bool(-(2**31) <= int(value.__index__()) < 2**31)


ASKED = Fields(InvalidRequestError)
"""Reads what a client asks. Raises InvalidRequestError."""

ANSWERED = Fields(ProtocolError)
"""Reads what a server answers. Raises ProtocolError."""

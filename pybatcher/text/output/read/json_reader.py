"""JSON, read strictly while it arrives: the first invalid character ends it."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from ...plain_values import plain_json
from .source import MalformedCallError, Reading, TextSource

__all__ = [
    "MAX_DEPTH",
    "check_not_ended",
    "check_plain",
    "expect",
    "json_text",
    "loads",
    "plain_object",
    "read_colon",
    "read_string",
    "read_value",
]

MAX_DEPTH = 64

_PLAIN_CHARACTERS = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER_CHARACTERS = re.compile(r"[-+.0-9eE]*")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_ESCAPES = tuple("\\" + character for character in '"\\/bfnrtu')


def read_value(source: TextSource, depth: int = 0) -> Reading[None]:
    """Read one JSON value. Raises MalformedCallError if it is invalid."""
    first = yield from source.peek()
    if first == '"':
        yield from read_string(source)
    elif first in ("{", "["):
        if depth == MAX_DEPTH:
            raise MalformedCallError(f"its JSON is nested more than {MAX_DEPTH} levels deep")
        yield from _read_container(source, depth)
    elif first and (first == "-" or first in "0123456789"):
        number = yield from source.run(_NUMBER_CHARACTERS)
        if not _NUMBER.fullmatch(number):
            raise MalformedCallError("its JSON has a number that is none")
    elif not (yield from source.literal("true", "false", "null")):
        raise not_json(first)


def read_string(source: TextSource) -> Reading[str]:
    """Read a JSON string and return its value. Raises MalformedCallError."""
    parts = [(yield from expect(source, '"'))]
    while True:
        parts.append((yield from source.run(_PLAIN_CHARACTERS)))
        character = yield from source.peek()
        if character == '"':
            parts.append(source.take(1))
            return loads("".join(parts))  # type: ignore[no-any-return]
        if character != "\\":
            raise not_json(character)
        escape = yield from source.literal(*_ESCAPES)
        if not escape:
            raise MalformedCallError("its JSON has a string with an unknown escape")
        parts.append(escape)
        if escape == "\\u":
            parts.append((yield from _read_hex(source)))


def _read_hex(source: TextSource) -> Reading[str]:
    digits = ""
    while len(digits) < 4:
        digit = yield from source.peek()
        if not digit:
            raise not_json(digit)
        if digit not in _HEX_DIGITS:
            raise MalformedCallError("its JSON has a string with an unknown escape")
        digits += source.take(1)
    return digits


def _read_container(source: TextSource, depth: int) -> Reading[None]:
    is_object = source.take(1) == "{"
    close = "}" if is_object else "]"
    yield from source.blanks()
    if (yield from source.literal(close)):
        return
    while True:
        if is_object:
            yield from read_string(source)
            yield from read_colon(source)
        yield from read_value(source, depth + 1)
        yield from source.blanks()
        if (yield from expect(source, ",", close)) == close:
            return
        yield from source.blanks()


def read_colon(source: TextSource) -> Reading[None]:
    """Read a colon and the blanks around it. Raises MalformedCallError."""
    yield from source.blanks()
    yield from expect(source, ":")
    yield from source.blanks()


def expect(source: TextSource, *texts: str) -> Reading[str]:
    """Read one of these texts. Raises MalformedCallError if none of them comes."""
    found = yield from source.literal(*texts)
    if not found:
        rest = yield from source.peek()
        raise MalformedCallError(
            f"it has {rest!r} where {_either(texts)} must be" if rest else _CUT
        )
    return found


def check_not_ended(source: TextSource) -> Reading[None]:
    """Require more text after a name or a value, which the end of the text may have cut.

    Raises MalformedCallError.
    """
    if not (yield from source.peek()):
        raise MalformedCallError(_CUT)


_CUT = "it ends in the middle"


def _either(texts: tuple[str, ...]) -> str:
    return " or ".join(map(repr, texts))


def not_json(character: str) -> MalformedCallError:
    """Return the error for a character that is invalid here; "" is the end of the text."""
    return MalformedCallError(f"it has {character!r} where JSON must be" if character else _CUT)


def loads(text: str) -> Any:
    """Return the value of a JSON text. Raises MalformedCallError.

    A number that a double cannot hold is the largest double, so that it makes no call invalid.
    """
    try:
        value = plain_json(text)
        check_plain(value)
    except (ValueError, RecursionError) as error:
        raise MalformedCallError(f"its JSON has no value: {error}") from None
    return value


def plain_object(text: str) -> dict[str, Any]:
    """Return the object of a JSON text. Raises MalformedCallError for anything else."""
    value = loads(text)
    if not isinstance(value, dict):
        raise MalformedCallError("its arguments are not a JSON object")
    return value


def check_plain(value: object, depth: int = 0) -> None:
    """Refuse values without a JSON text in UTF-8. Raises MalformedCallError."""
    if depth > MAX_DEPTH:
        raise MalformedCallError(f"its arguments are nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise MalformedCallError("it has a lone surrogate in a text")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise MalformedCallError(f"it has {value}, which JSON cannot say")
    elif isinstance(value, list):
        for item in value:
            check_plain(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise MalformedCallError("its arguments have a key that is not a text")
            check_plain(key, depth + 1)
            check_plain(item, depth + 1)
    elif not (value is None or isinstance(value, (int, bool))):
        raise MalformedCallError(f"it has a value of type {type(value).__name__}")


def json_text(value: object) -> str:
    """Return the JSON text of a plain value. Raises MalformedCallError."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:  # an integer of thousands of digits
        raise MalformedCallError(f"it has a value without JSON text: {error}") from None

"""Literals of Python, read while they arrive."""

from __future__ import annotations

import re
from typing import Any

from .json_reader import MAX_DEPTH, check_plain, expect, loads
from .source import MalformedCallError, Reading, TextSource

__all__ = ["WORD_CHARACTERS", "python_value", "read_python_value", "word_value"]

WORD_CHARACTERS = re.compile(r"[A-Za-z0-9_.+-]*")

_TEXT_CHARACTERS = {quote: re.compile(rf"[^\\{quote}]*") for quote in "\"'"}
_WORDS = {"True": True, "False": False, "None": None}
_ESCAPES = {
    **{"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"},
    **{"\\": "\\", "'": "'", '"': '"', "\n": ""},
}
_QUOTES = ('"""', "'''", '"', "'")
_OCTAL_DIGITS = "01234567"
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}


def python_value(text: str) -> Any:
    """Return the value of a complete text that is one literal. Raises MalformedCallError."""
    source = TextSource()
    source.feed(text)
    source.ended = True
    reading = _read_all(source)
    try:
        next(reading)
    except StopIteration as end:
        return end.value
    raise AssertionError("a source that has ended is not waited for")


def _read_all(source: TextSource) -> Reading[Any]:
    yield from source.blanks()
    value = yield from read_python_value(source, 1)
    yield from source.blanks()
    if rest := (yield from source.peek()):
        raise MalformedCallError(f"it has {rest!r} behind a value")
    return value


def read_python_value(source: TextSource, depth: int) -> Reading[Any]:
    """Read one literal. depth: of nesting, from 1. Raises MalformedCallError."""
    if depth > MAX_DEPTH:
        raise MalformedCallError(f"its arguments are nested more than {MAX_DEPTH} levels deep")
    opened = yield from source.literal(*_QUOTES, "[", "(", "{")
    if opened == "{":
        return (yield from _read_dict(source, depth))
    if opened in ("[", "("):
        return (yield from _read_list(source, "]" if opened == "[" else ")", depth))
    if opened:
        return (yield from _read_texts(source, opened))
    return word_value((yield from source.run(WORD_CHARACTERS)))


def word_value(word: str) -> Any:
    """Return the value of a word without quotes. Raises MalformedCallError."""
    return _WORDS[word] if word in _WORDS else loads(word)


def _read_list(source: TextSource, close: str, depth: int) -> Reading[list[Any]]:
    items: list[Any] = []
    yield from source.blanks()
    while not (yield from source.literal(close)):
        items.append((yield from read_python_value(source, depth + 1)))
        yield from source.blanks()
        if (yield from expect(source, ",", close)) == close:
            break
        yield from source.blanks()
    return items


def _read_dict(source: TextSource, depth: int) -> Reading[dict[str, Any]]:
    members: dict[str, Any] = {}
    yield from source.blanks()
    while not (yield from source.literal("}")):
        key = yield from read_python_value(source, depth + 1)
        if not isinstance(key, str):
            raise MalformedCallError("its arguments have a key that is not a text")
        yield from source.blanks()
        yield from expect(source, ":")
        yield from source.blanks()
        members[key] = yield from read_python_value(source, depth + 1)
        yield from source.blanks()
        if (yield from expect(source, ",", "}")) == "}":
            break
        yield from source.blanks()
    return members


def _read_texts(source: TextSource, quote: str) -> Reading[str]:
    """Read a text after its quote, and adjacent ones, which Python joins."""
    texts = [(yield from _read_text(source, quote))]
    yield from source.blanks()
    while quote := (yield from source.literal(*_QUOTES)):
        texts.append((yield from _read_text(source, quote)))
        yield from source.blanks()
    return "".join(texts)


def _read_text(source: TextSource, quote: str) -> Reading[str]:
    parts: list[str] = []
    while True:
        parts.append((yield from source.run(_TEXT_CHARACTERS[quote[0]])))
        if (yield from source.literal(quote)):
            break
        character = yield from source.peek()
        if not character:
            raise MalformedCallError("it ends in the middle")
        source.take(1)
        escaped = character == "\\"
        parts.append((yield from _read_escape(source)) if escaped else character)
    text = "".join(parts)
    check_plain(text)
    return text


def _read_escape(source: TextSource) -> Reading[str]:
    kind = yield from source.peek()
    if not kind:
        raise MalformedCallError("it ends in the middle")
    source.take(1)
    if kind in _ESCAPES:
        return _ESCAPES[kind]
    if kind in _OCTAL_DIGITS:
        while len(kind) < 3 and (character := (yield from source.peek())):
            if character not in _OCTAL_DIGITS:
                break
            kind += source.take(1)
        return chr(int(kind, 8))
    if kind not in _HEX_LENGTHS:
        return "\\" + kind  # Python keeps the backslash of an escape that it does not know
    digits = ""
    while len(digits) < _HEX_LENGTHS[kind] and (yield from source.peek()):
        digits += source.take(1)
    try:
        return chr(int(digits, 16))
    except (ValueError, OverflowError):
        raise MalformedCallError("it has a text with an unknown escape") from None

"""Reader of a call that a model wrote as one in Python: `NAME(key=value, ...)`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .call_builder import CallBuilder
from .json_reader import MAX_DEPTH, check_plain, expect, loads
from .source import MalformedCallError, Reading, TextSource

__all__ = ["read_python_call"]

_NAME_CHARACTERS = re.compile(r"[A-Za-z0-9_.]*")
_WORD_CHARACTERS = re.compile(r"[A-Za-z0-9_.+-]*")
_TEXT_CHARACTERS = {quote: re.compile(rf"[^\\{quote}]*") for quote in "\"'"}
_WORDS = {"True": True, "False": False, "None": None}
_ESCAPES = {
    **{"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"},
    **{"\\": "\\", "'": "'", '"': '"', "\n": ""},
}
_OCTAL_DIGITS = "01234567"
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}


def read_python_call(source: TextSource, call: CallBuilder) -> Reading[None]:
    """Read one call, whose arguments are literals. `print(NAME(...))` counts as the inner one.

    Positional arguments take the names of the schema's properties, in their order. An exact call
    starts when it is complete.
    """
    name = yield from source.run(_NAME_CHARACTERS)
    yield from expect(source, "(")
    printed = name == "print"
    if printed:
        yield from source.blanks()
        name = yield from source.run(_NAME_CHARACTERS)
        yield from expect(source, "(")
    call.set_name(name.removesuffix(".call"))
    if not call.exact:
        call.begin_arguments()
    yield from _read_arguments(source, call)
    if printed:
        yield from source.blanks()
        yield from expect(source, ")")
    if call.exact:
        call.begin_arguments()
    call.end_arguments()


def _read_arguments(source: TextSource, call: CallBuilder) -> Reading[None]:
    """Read what is in the brackets, and the one that closes."""
    positional = 0
    yield from source.blanks()
    while not (yield from source.literal(")")):
        word = yield from source.run(_WORD_CHARACTERS)
        yield from source.blanks()
        if word and (yield from source.literal("=")):
            yield from source.blanks()
            call.add_argument(word, (yield from _read_value(source, 1)))
        else:
            value = _word_value(word) if word else (yield from _read_value(source, 1))
            call.add_argument(_positional_name(call.schema, positional), value)
            positional += 1
        yield from source.blanks()
        if (yield from expect(source, ",", ")")) == ")":
            return
        yield from source.blanks()


def _positional_name(schema: Mapping[str, Any], index: int) -> str:
    properties = schema.get("properties")
    names = list(properties) if isinstance(properties, Mapping) else []
    if index >= len(names):
        raise MalformedCallError("it has an argument without a name")
    return str(names[index])


def _read_value(source: TextSource, depth: int) -> Reading[Any]:
    if depth > MAX_DEPTH:
        raise MalformedCallError(f"its arguments are nested more than {MAX_DEPTH} levels deep")
    opened = yield from source.literal('"""', "'''", '"', "'", "[", "(", "{")
    if opened == "{":
        return (yield from _read_dict(source, depth))
    if opened in ("[", "("):
        return (yield from _read_list(source, "]" if opened == "[" else ")", depth))
    if opened:
        return (yield from _read_text(source, opened))
    return _word_value((yield from source.run(_WORD_CHARACTERS)))


def _word_value(word: str) -> Any:
    return _WORDS[word] if word in _WORDS else loads(word)


def _read_list(source: TextSource, close: str, depth: int) -> Reading[list[Any]]:
    items: list[Any] = []
    yield from source.blanks()
    while not (yield from source.literal(close)):
        items.append((yield from _read_value(source, depth + 1)))
        yield from source.blanks()
        if (yield from expect(source, ",", close)) == close:
            break
        yield from source.blanks()
    return items


def _read_dict(source: TextSource, depth: int) -> Reading[dict[str, Any]]:
    members: dict[str, Any] = {}
    yield from source.blanks()
    while not (yield from source.literal("}")):
        key = yield from _read_value(source, depth + 1)
        if not isinstance(key, str):
            raise MalformedCallError("its arguments have a key that is not a text")
        yield from source.blanks()
        yield from expect(source, ":")
        yield from source.blanks()
        members[key] = yield from _read_value(source, depth + 1)
        yield from source.blanks()
        if (yield from expect(source, ",", "}")) == "}":
            break
        yield from source.blanks()
    return members


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

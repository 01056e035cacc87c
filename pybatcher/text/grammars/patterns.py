r"""`translated`: translates a JSON schema's pattern to Rust's syntax, without widening it.

A schema's pattern is one of ECMA 262. Rust's syntax differs (sets in sets, `\z`, flags), and
Python, which often validates schemas, interprets `\w`, `\d`, `\s`, `.` and `$` differently. A
pattern of a string is translated to one that matches only texts that all of them match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from ...errors import InvalidRequestError
from ...errors.checks import short

__all__ = ["Reading", "translated"]

Reading = Literal["fewer", "exact", "more"]
"""The texts that all readers match; those that ECMA 262 matches; those that any reader matches."""

_OPPOSITE: dict[Reading, Reading] = {"fewer": "more", "exact": "exact", "more": "fewer"}

# Characters of \d, \w and \s, by reading: the common ones, ECMA's, and these with Python's.
_BLANKS = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SETS: dict[Reading, dict[str, str]] = {
    "fewer": {"d": "0-9", "w": "0-9A-Z_a-z", "s": _BLANKS},
    "exact": {"d": "0-9", "w": "0-9A-Z_a-z", "s": _BLANKS + r"\ufeff"},
    "more": {
        "d": r"\p{Nd}",
        "w": r"_\p{L}\p{N}",
        "s": _BLANKS + r"\ufeff\x1c-\x1f\u0085",
    },
}
_DOT = r"[^\n\r\u2028\u2029]"  # Python excludes only \n

# Characters that no output contains, since JSON writes them only as \u00.. They are removed from
# every class: for a class with all of them, llguidance 1.9 also allows '"' and '\\', whatever the
# class says.
_CONTROLS = r"\x00-\x07\x0b\x0e-\x1f\x7f"
_META = frozenset(r"\.+*?()|[]{}^$#&-~/")  # Rust requires or allows a backslash before them
_GROUP = re.compile(r"\(\?(?:[:=!]|<[=!]|P?<\w+>|i?s?[:)])")
# Escaped letters with the same meaning for all readers, or refused by llguidance.
_LETTERS = frozenset("tnrfvbBcpPk")
_CODE = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]+\}|[pP]\{[^}]*\}|.)", re.S)


def translated(pattern: str, reading: Reading) -> str:
    """Return the pattern in Rust's syntax, in a reading.

    Raises InvalidRequestError for syntax that ECMA 262 lacks, or interprets differently.
    """
    return "".join(_parts(pattern, reading))


def _parts(pattern: str, reading: Reading) -> Iterator[str]:
    dot_is_all = "(?s" in pattern or "(?is" in pattern
    i = 0
    while i < len(pattern):
        c = pattern[i]
        if c == "\\":
            text, is_set, i = _escape(pattern, i, reading)
            # A class even for one control character, which llguidance leaves out of a text.
            yield _written(text) if is_set else _written(f"[{text}]") if _is_code(text) else text
            continue
        if c == "[":
            text, i = _class(pattern, i, reading)
            yield _written(text)
            continue
        if c == "." and reading != "more" and not dot_is_all:
            yield _written(_DOT)
        elif c == "$" and reading == "more":
            yield r"\n?$"
        elif pattern.startswith("(?", i):
            group = _GROUP.match(pattern, i)
            if group is None:
                raise _bad(pattern, pattern[i : i + 4])
            yield group[0]
            i = group.end()
            continue
        else:
            yield _written(f"[{c}]") if c < " " or c == "\x7f" else c
        i += 1


def _written(text: str) -> str:
    """Return a class without the characters that no output contains."""
    return f"[{text}&&[^{_CONTROLS}]]"


def _is_code(text: str) -> bool:
    return text.startswith(("\\x", "\\u", "\\v"))


def _escape(pattern: str, i: int, reading: Reading) -> tuple[str, bool, int]:
    """Return an escape in Rust's syntax, whether it is a set, and its end."""
    found = _CODE.match(pattern, i)
    if found is None:
        raise _bad(pattern, "\\")
    text, c = found[0], found[0][1]
    if c.lower() in _SETS["exact"]:
        if c.islower():
            return f"[{_SETS[reading][c]}]", True, found.end()
        return f"[^{_SETS[_OPPOSITE[reading]][c.lower()]}]", True, found.end()
    if c.isascii() and c.isalnum():
        if len(text) == 2 and c not in _LETTERS and not c.isdigit():
            raise _bad(pattern, text)
        return text, c in "pP", found.end()
    return (text if c in _META else c), False, found.end()


def _class(pattern: str, i: int, reading: Reading) -> tuple[str, int]:
    """Return a class of characters in Rust's syntax, and its end."""
    begin, i = i, i + 1
    negated = pattern.startswith("^", i)
    if negated:
        reading, i = _OPPOSITE[reading], i + 1
    if pattern.startswith("]", i):
        raise _bad(pattern, pattern[begin : i + 1])
    parts = ["[^" if negated else "["]
    while not pattern.startswith("]", i):
        first, is_set, i = _item(pattern, i, reading)
        parts.append(first)
        if pattern.startswith("-", i) and not pattern.startswith("]", i + 1):
            last, last_is_set, i = _item(pattern, i + 1, reading)
            parts += [r"\-" if is_set or last_is_set else "-", last]
    return "".join(parts) + "]", i + 1


def _item(pattern: str, i: int, reading: Reading) -> tuple[str, bool, int]:
    """Return a character or an escape of a class, whether it is a set, and its end."""
    if i >= len(pattern):
        raise _bad(pattern, "[")
    if pattern[i] != "\\":
        return ("\\" if pattern[i] in _META else "") + pattern[i], False, i + 1
    if pattern.startswith("\\b", i):
        return r"\x08", False, i + 2
    return _escape(pattern, i, reading)


def _bad(pattern: str, part: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"json_schema has the pattern {short(pattern)}, of which {part!r} cannot be used: not all "
        "who read patterns take it for the same; write it in another way, by ECMA 262",
        field="json_schema",
    )

"""`partial_json`: the value of a JSON text that is still being written."""

from __future__ import annotations

import json
import re
from typing import Any

from .plain_values import plain_json

__all__ = ["cut_object", "partial_json"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s"\[\]{},:]+|\s+', re.DOTALL)
_HIGH = r"[dD][89abAB][0-9a-fA-F]{2}"
_WHOLE_CHARACTERS = re.compile(
    rf'"(?:[^"\\]|\\[^u]|\\u(?!{_HIGH})[0-9a-fA-F]{{4}}|\\u{_HIGH}\\u[0-9a-fA-F]{{4}})*'
)
_DEEPEST = 256  # nested lists and objects
_WORDS = frozenset({"true", "false", "null"})


def partial_json(text: str) -> Any:
    """Return the value of the beginning of a JSON text, as far as it is certain.

    An open string has its characters so far. A number at the end, which may continue, and a name
    without a value are left out. None if there is no value yet, and for invalid JSON or more than
    256 nested lists and objects.
    """
    try:
        return json.loads(_closed(text))
    except (ValueError, RecursionError):
        return None


def cut_object(text: str) -> dict[str, Any] | None:
    """Return the complete members of an object whose JSON text was cut; None if it is no object.

    The values are those of `partial_json`, with numbers as `plain_json` reads them.
    """
    try:
        value = plain_json(_closed(text))
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no text
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _closed(text: str) -> str:
    """Return the longest prefix of a text that closing brackets complete to a value, with them."""
    closers: list[str] = []
    is_name = False  # a string would be the name of a value
    best = ""
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:  # an open string
            opened = _WHOLE_CHARACTERS.match(text, at)
            if is_name or opened is None:
                return best
            return _with(text[: opened.end()] + '"', closers)
        token, at = found.group(), found.end()
        may_go_on = at == len(text) and token[0] != '"' and token not in _WORDS
        if token in "[{":
            closers.append("]" if token == "[" else "}")
            if len(closers) > _DEEPEST:
                return ""
        elif token in "]}":
            if not closers or closers.pop() != token:
                return best
        elif token in ",:" or token.isspace() or is_name or may_go_on:
            is_name = (token == "," and closers[-1:] == ["}"]) or (is_name and token != ":")
            continue
        is_name = token == "{"
        best = _with(text[:at], closers)
    return best


def _with(text: str, closers: list[str]) -> str:
    return text + "".join(reversed(closers))

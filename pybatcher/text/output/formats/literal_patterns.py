"""`literals_of`: the fixed texts that a regular expression stands for, where it has no others."""

from __future__ import annotations

import re

__all__ = ["literals_of"]

_MAX_LENGTH = 256
# Parts of a pattern: a group's brackets, a bar, an end, an escaped character or any other, which
# may be repeated.
_PART = re.compile(r"\((?:\?:)?|\)|\||\$|\\Z|(?:\\.|[^\\.^$*+?{}()|\[\]])[*+?]?", re.DOTALL)
_ESCAPED_BLANKS = {"n": "\n", "r": "\r", "t": "\t"}
_ENDS = ("$", "\\Z")


def literals_of(pattern: str) -> tuple[str, ...]:
    r"""Return the texts, without the blanks around them; empty for any other pattern.

    Known are escaped texts, alternatives of them (`a|b`, `(?:a|b)`), and blanks and an end around
    them (`\s*`, `$`). The pattern comes with a checkpoint, and some would not end: it is not run.
    """
    parts = _PART.findall(pattern) if len(pattern) <= _MAX_LENGTH else []
    if "".join(parts) != pattern:
        return ()
    begin, end = 0, len(parts)
    while begin < end and _is_blank(parts[begin]):
        begin += 1
    while begin < end and (parts[end - 1] in _ENDS or _is_blank(parts[end - 1])):
        end -= 1
    if end - begin > 2 and parts[begin] in ("(", "(?:") and parts[end - 1] == ")":
        begin, end = begin + 1, end - 1
    texts = [""]
    for part in parts[begin:end]:
        character = _character(part)
        if part == "|":
            texts.append("")
        elif character:
            texts[-1] += character
        else:
            return ()
    texts = [text.strip() for text in texts]
    return tuple(texts) if all(texts) else ()


def _is_blank(part: str) -> bool:
    """Return whether a part is blanks, repeated or not."""
    repeated = len(part) > 1 and part[-1] in "*+?" and part[-2:-1] != "\\"
    one = part[:-1] if repeated else part
    return one == "\\s" or _character(one).isspace()


def _character(part: str) -> str:
    """Return the one character that a part stands for; "" for any other part."""
    if len(part) == 1:
        return "" if part in "()|$" else part
    if len(part) == 2 and part[0] == "\\":
        escaped = part[1]
        return _ESCAPED_BLANKS.get(escaped, "" if escaped.isalnum() else escaped)
    return ""

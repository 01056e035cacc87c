"""Reads a tokenizer's response template, if it is of a known kind.

Such a template (`response_template` in tokenizer_config.json) has `fields`, each with literal texts
or regular expressions that open and close it, and a description of its content. Source: the
documentation of transformers, "Response Parsing". Regular expressions are not run: they come with
the checkpoint, and some would not end. Expressions for fixed texts are read as these texts; the
others are recognised by the markers in them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .formats import CallSyntax, ResponseFormat, ThinkMarkers

__all__ = ["literals_of", "read_own_template"]

_THINKING = ("thinking", "reasoning", "reasoning_content")
_MAX_MARKER = 64
_MAX_LENGTH = 256
# Parts of a pattern: a group's brackets, a bar, an end, an escaped character or any other, which
# may be repeated.
_PART = re.compile(r"\((?:\?:)?|\)|\||\$|\\Z|(?:\\.|[^\\.^$*+?{}()|\[\]])[*+?]?", re.DOTALL)
_ESCAPED_BLANKS = {"n": "\n", "r": "\r", "t": "\t"}
_ENDS = ("$", "\\Z")


def read_own_template(template: object) -> ResponseFormat | None:
    """Return the format that a response template describes; None if it cannot be read.

    Templates with literal markers and calls in JSON can be read. The template is not trusted: it
    may have any shape.
    """
    fields = _mapping(_mapping(template).get("fields"))
    if not fields:
        return None
    think: list[ThinkMarkers] = []
    for name in _THINKING:
        if name in fields:
            opens, closes = _literals(fields[name], "open"), _literals(fields[name], "close")
            if len(opens) != 1 or len(closes) != 1:
                return None
            think.append(ThinkMarkers(opens[0], closes[0]))
    calls: tuple[CallSyntax, ...] = ()
    if "tool_calls" in fields:
        syntax = _calls(_mapping(fields["tool_calls"]))
        if syntax is None:
            return None
        calls = (syntax,)
    content = _mapping(fields.get("content"))
    if "open_pattern" in content:  # its closing texts are end tokens, which are no text here
        return None
    return ResponseFormat("own", tuple(think), calls, dropped=_literals(content, "open"))


def _calls(field: Mapping[str, Any]) -> CallSyntax | None:
    opens, closes = _literals(field, "open"), _literals(field, "close")
    if field.get("content") != "json" or _mapping(field.get("content_args")) or not opens:
        return None
    keys = _keys(field.get("transform"))
    if keys is None:
        return None
    names, arguments = keys
    listed = field.get("transform_each") is True
    return CallSyntax(
        opens, closes, ("json",), listed=listed, name_keys=names, arguments_keys=arguments
    )


def _keys(transform: object) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the keys of a call's name and arguments, from the template's transformation."""
    function = _mapping(transform).get("function")
    if transform is None or function == "{content}":
        return ("name",), ("arguments", "parameters")
    name = _placeholder(_mapping(function).get("name"))
    arguments = _placeholder(_mapping(function).get("arguments"))
    return ((name,), (arguments,)) if name and arguments else None


def _placeholder(value: object) -> str:
    """Return the name in "{name}" or "{content.name}"; "" for anything else, as "{content}"."""
    if not isinstance(value, str) or not (value.startswith("{") and value.endswith("}")):
        return ""
    name = value[1:-1].removeprefix("content.")
    return name if name.isidentifier() and name != "content" else ""


def _literals(field: object, key: str) -> tuple[str, ...]:
    """Return the literal texts of a delimiter; empty if there is none, or no usable one."""
    plain = _mapping(field)
    value, pattern = plain.get(key), plain.get(f"{key}_pattern")
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if isinstance(pattern, str):
        texts = [*literals_of(pattern)] if key not in plain else []
    usable = all(isinstance(one, str) and 0 < len(one.strip()) <= _MAX_MARKER for one in texts)
    return tuple(one.strip() for one in texts) if usable else ()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def literals_of(pattern: str) -> tuple[str, ...]:
    r"""Return the texts, without the blanks around them; empty for any other pattern.

    Escaped texts, alternatives of them (`a|b`, `(?:a|b)`), and blanks and an end around them
    (`\s*`, `$`) are known. The pattern comes with a checkpoint, and some would not end, so it is
    not run.
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
    """Return the one character of a part; "" for any other part."""
    if len(part) == 1:
        return "" if part in "()|$" else part
    if len(part) == 2 and part[0] == "\\":
        escaped = part[1]
        return _ESCAPED_BLANKS.get(escaped, "" if escaped.isalnum() else escaped)
    return ""

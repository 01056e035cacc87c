"""Texts about a function and its parameters, from a docstring in Google style."""

from __future__ import annotations

import re

__all__ = ["read_docstring"]

_PARAMETERS = frozenset({"args", "arguments", "parameters"})
_SECTIONS = _PARAMETERS | {
    *("attributes", "example", "examples", "note", "notes", "raises", "references", "return"),
    *("returns", "see", "todo", "warning", "warnings", "yield", "yields"),
}
_HEADING = re.compile(r"([A-Za-z]+)( [A-Za-z]+)?:\s*")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*:\s*(.*)")


def read_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the description before the first section, and those of the parameters.

    docstring: without the indentation of the code, as `inspect.getdoc` returns it. The section
    "Args:" has an entry `name: text` or `name (type): text` for each parameter; lines that are
    indented further go on with it.
    """
    lines = docstring.splitlines()
    first = next((i for i, line in enumerate(lines) if _section(line)), len(lines))
    description = "\n".join(lines[:first]).strip()
    parameters: dict[str, list[str]] = {}
    section, indent, current = "", 0, ""
    for line in lines[first:]:
        if heading := _section(line):
            section, indent, current = heading, 0, ""
            continue
        text = line.strip()
        if section not in _PARAMETERS or not text:
            continue
        depth = len(line) - len(line.lstrip())
        indent = indent or depth
        entry = _ENTRY.fullmatch(text) if depth <= indent else None
        if entry:
            current = entry.group(1)
            parameters[current] = [entry.group(3)] if entry.group(3) else []
        elif current:
            parameters[current].append(text)
    return description, {name: " ".join(parts) for name, parts in parameters.items()}


def _section(line: str) -> str:
    """Return the name of the section that a line begins, in small letters, or ""."""
    heading = _HEADING.fullmatch(line)
    name = heading.group(1).lower() if heading else ""
    return name if name in _SECTIONS else ""

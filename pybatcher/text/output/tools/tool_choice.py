"""`ToolChoice`: the tools that a response may or must call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ....errors import InvalidRequestError
from ....errors.checks import REQUEST, plain_text
from ...plain_values import PlainReader
from .tools import MAX_TOOLS, ToolSpec

__all__ = ["ToolChoice", "read_tool_choice"]

_MODES = ("auto", "none", "required")
_WANTED = "'auto', 'none', 'required' or {'name': ...}"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools that a response may or must call.

    mode: "auto": the model decides; "none": no call; "required": at least one call.
    names: names of the tools that it may call.
    """

    mode: Literal["auto", "none", "required"]
    names: tuple[str, ...]

    def tools(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Return the tools that may be called."""
        return tuple(tool for tool in tools if tool.name in self.names)


def read_tool_choice(choice: object, tools: Sequence[ToolSpec]) -> ToolChoice:
    """Return the choice of a request, in one of the shapes of OpenAI's APIs.

    choice: None ("auto" if there are tools), a mode, the name of a tool in `{"name"}`,
        `{"type": "function", "name"}` or `{"type": "function", "function": {"name"}}`, or
        several in `{"type": "allowed_tools", "mode", "tools"}`.

    Raises InvalidRequestError.
    """
    names = tuple(tool.name for tool in tools)
    mode = plain_text(choice)
    if choice is None:
        return ToolChoice("auto" if names else "none", names)
    if mode is not None:
        return _of_mode(REQUEST.choice("tool_choice", mode, _MODES, _WANTED), names)
    with REQUEST.reading("tool_choice", choice, _WANTED):
        if not isinstance(choice, Mapping):
            raise REQUEST.bad("tool_choice", choice, _WANTED)
        plain = PlainReader("tool_choice is too large", most=2**12).mapping(
            choice, "tool_choice", 0
        )
    kind = plain.get("type")
    if kind == "function" or (kind is None and "name" in plain):
        return ToolChoice("required", (_name(plain, "tool_choice", names),))
    if kind == "allowed_tools":
        inner = plain.get("allowed_tools", plain)
        where = "tool_choice.allowed_tools" if "allowed_tools" in plain else "tool_choice"
        if not isinstance(inner, dict):
            raise REQUEST.bad(where, inner, "a mapping with mode and tools")
        items = REQUEST.items(f"{where}.tools", inner.get("tools"), MAX_TOOLS, "a list of tools")
        allowed = {_name(one, f"{where}.tools[{i}]", names) for i, one in enumerate(items)}
        mode = REQUEST.choice(f"{where}.mode", inner.get("mode", "auto"), ("auto", "required"))
        return _of_mode(mode, tuple(name for name in names if name in allowed))
    raise REQUEST.bad("tool_choice.type", kind, "'function' or 'allowed_tools'")


def _of_mode(mode: Any, names: tuple[str, ...]) -> ToolChoice:
    if mode == "required" and not names:
        raise InvalidRequestError(
            "tool_choice is 'required' and there are no tools; tools must have at least one",
            field="tool_choice",
        )
    return ToolChoice(mode if names else "none", names)


def _name(choice: object, where: str, names: tuple[str, ...]) -> str:
    function = choice.get("function", choice) if isinstance(choice, dict) else choice
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise REQUEST.bad(f"{where}.name", name, "the name of a tool")
    if name not in names:
        known = ", ".join(map(repr, names[:8])) or "none at all"
        raise REQUEST.bad(f"{where}.name", name, f"the name of one of the tools ({known})")
    return name

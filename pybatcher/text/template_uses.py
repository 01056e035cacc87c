"""`TemplateUses`: the parts of a chat that a template shows, found by rendering small chats."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from .chat_images import IMAGE_PART
from .message_forms import PROBE_TOOLS, Render, rendered

__all__ = ["THINKING_VARIABLES", "TemplateUses"]

THINKING_VARIABLES: Mapping[str, tuple[Any, ...]] = {
    "enable_thinking": (False, True),
    "reasoning_effort": ("low", "medium", "high"),
}
"""Variables that switch reasoning, with values for which a template that reads one differs."""

_KEY = "pybatcher_probe"
_TOOL = PROBE_TOOLS[0]["function"]["name"]
_USER = {"role": "user", "content": "question"}
_SYSTEM = {"role": "system", "content": _KEY}
_CHATS: tuple[list[dict[str, Any]], ...] = ([_USER], [_SYSTEM, _USER])


class TemplateUses:
    """The uses of a template, each found when it is first read, by rendering small chats.

    source: the template. render: renders it; it may raise anything. Threads that read a use at the
    same time find the same. A template that renders none of the chats, for whatever reason, counts
    as one that uses everything: its own error is then the one that callers see.
    """

    def __init__(self, source: str, render: Render) -> None:
        self._source = source
        self._render = render
        self._takes: dict[str, bool] = {}

    @cached_property
    def tools(self) -> bool:
        """True if the template shows tools."""
        if not self._names("tools"):
            return False
        renders = False
        for chat in _CHATS:
            shown = rendered(self._render, {"messages": chat, "tools": PROBE_TOOLS})
            if shown is not None and _TOOL in shown:
                return True
            plain = rendered(self._render, {"messages": chat, "tools": None})
            renders = renders or plain is not None
        return not renders

    @cached_property
    def system(self) -> bool:
        """True if the template shows a system message."""
        shown = rendered(self._render, {"messages": _CHATS[1], "tools": None})
        if shown is None:
            return rendered(self._render, {"messages": _CHATS[0], "tools": None}) is None
        return _KEY in shown

    @cached_property
    def text_contents(self) -> bool:
        """True if the template shows a content that is a text; False if only in a list of parts."""
        if not self._names("type"):
            return True
        for content, shows in ((_KEY, True), ([{"type": "text", "text": _KEY}], False)):
            chat = [{"role": "user", "content": content}]
            if _KEY in (rendered(self._render, {"messages": chat, "tools": None}) or ""):
                return shows
        return True

    def images(self, placeholder: str) -> bool:
        """Return whether the template writes `placeholder` for an image of the user."""
        parts = [IMAGE_PART, {"type": "text", "text": "question"}]
        chat = [{"role": "user", "content": parts}]
        return placeholder in (rendered(self._render, {"messages": chat, "tools": None}) or "")

    @cached_property
    def tool_turns(self) -> bool:
        """True if the template shows calls of tools and their results, without the tools."""
        result = f"{_KEY}_result"
        for arguments in ({_KEY: 1}, json.dumps({_KEY: 1})):
            for content in (None, ""):
                function = {"name": _TOOL, "arguments": arguments}
                call = {"id": "probe0000", "type": "function", "function": function}
                chat = [
                    _USER,
                    {"role": "assistant", "content": content, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": call["id"], "name": _TOOL, "content": result},
                ]
                shown = rendered(self._render, {"messages": chat, "tools": None})
                if shown is not None and result in shown and _KEY in shown.replace(result, ""):
                    return True
        return False

    def takes(self, name: str) -> bool:
        """Return whether a variable of `THINKING_VARIABLES` changes the prompt."""
        if name not in self._takes:
            self._takes[name] = self._names(name) and self._differs(name)
        return self._takes[name]

    def _differs(self, name: str) -> bool:
        chats: Sequence[Mapping[str, Any]] = [
            {"messages": chat, "tools": tools} for chat in _CHATS for tools in (None, PROBE_TOOLS)
        ]
        renders = False
        for chat in chats:
            texts = {
                text
                for values in ({}, *({name: value} for value in THINKING_VARIABLES[name]))
                if (text := rendered(self._render, {**chat, **values})) is not None
            }
            if len(texts) > 1:
                return True
            renders = renders or bool(texts)
        return not renders

    def _names(self, name: str) -> bool:
        """Return whether the template's source has a name, without which it cannot read it."""
        return re.search(rf"\b{name}\b", self._source) is not None

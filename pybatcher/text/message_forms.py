"""`MessageForms`: the forms in which a chat template takes an assistant's messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .chat_messages import ArgumentForm, PartJoin

__all__ = [
    "PROBE_TOOLS",
    "MessageForms",
    "Render",
    "joins_of",
    "message_forms_of",
    "rendered",
]

Render = Callable[[Mapping[str, Any]], str]
"""Takes the variables of a template; it may raise anything."""

_KEY = "pybatcher_probe"
_NAME = "probe_tool"
_ID = "probe0000"  # nine letters and digits, which Mistral's templates require
PROBE_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "A probe.",
            "parameters": {"type": "object", "properties": {"other": {"type": "string"}}},
        },
    }
]
_FAILS, _RENDERS, _SHOWS = range(3)


@dataclass(frozen=True, slots=True)
class MessageForms:
    """The forms that a template takes.

    arguments: of calls.
    beside_calls, alone: the forms of an empty content (None, ""), beside calls and without them.
    several_calls: False if the template refuses or leaves out all calls of a message but one.
    """

    arguments: ArgumentForm
    beside_calls: tuple[str | None, ...]
    alone: tuple[str | None, ...]
    several_calls: bool

    def with_contents(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages whose empty contents have a form that the template takes."""
        made = []
        for message in messages:
            allowed = self.beside_calls if "tool_calls" in message else self.alone
            content = message.get("content")
            if message["role"] == "assistant" and not content and content not in allowed:
                message = {**message, "content": allowed[0]}
            made.append(message)
        return made


def message_forms_of(render: Render) -> MessageForms:
    """Return the forms, found by rendering chats with a call in each of them.

    Most templates take arguments as mappings. The templates of DeepSeek-V3 and R1 join them to
    other texts: a mapping would be an error, or be written in Python's notation. Some templates
    show calls only beside a content of None, others fail with it or write "None".
    """
    found: dict[tuple[str | None, ArgumentForm], int] = {}
    forms: tuple[ArgumentForm, ...] = ("mapping", "text")
    for content in (None, ""):
        for form in forms:
            found[content, form] = _status(render, content, form, 1)
    arguments: ArgumentForm = "mapping"
    if not any(found[content, "mapping"] == _SHOWS for content in (None, "")) and any(
        found[content, "text"] == _SHOWS for content in (None, "")
    ):
        arguments = "text"
    beside = _best({content: found[content, arguments] for content in (None, "")})
    shows = found[beside[0], arguments] == _SHOWS
    several = not shows or _status(render, beside[0], arguments, 2) == _SHOWS
    alone = _best({content: _status(render, content, arguments, 0) for content in (None, "")})
    return MessageForms(arguments, beside, alone, several)


def joins_of(render: Render) -> dict[str, PartJoin]:
    """Return how the template joins the text parts of a message, by role.

    A role is left out if the template takes only texts there, or writes more than white space
    between the parts.
    """
    parts = [{"type": "text", "text": f"{_KEY}1\t"}, {"type": "text", "text": f"\t{_KEY}2"}]
    question = {"role": "user", "content": "question"}
    call = {"id": _ID, "type": "function", "function": {"name": _NAME, "arguments": {}}}
    calls = {"role": "assistant", "content": "", "tool_calls": [call]}
    chats: tuple[tuple[list[Any], dict[str, Any], list[Any]], ...] = (
        ([], {"role": "user"}, []),
        ([], {"role": "system"}, [question]),
        ([question], {"role": "assistant"}, [question]),
        ([question, calls], {"role": "tool", "tool_call_id": _ID, "name": _NAME}, []),
    )
    found: dict[str, PartJoin] = {}
    for before, message, after in chats:
        chat = [*before, {**message, "content": parts}, *after]
        text = rendered(render, {"messages": chat, "tools": None}) or ""
        between, second, _ = text.partition(f"{_KEY}1")[2].partition(f"{_KEY}2")
        if second and not between.strip():
            strips = "\t" not in between
            found[message["role"]] = between if strips else between[1:-1], strips
    return found


def _best(statuses: Mapping[str | None, int]) -> tuple[str | None, ...]:
    """Return the contents with the best status; the empty text if the template takes neither."""
    best = max(statuses.values())
    return ("",) if best == _FAILS else tuple(one for one in statuses if statuses[one] == best)


def _status(render: Render, content: str | None, form: ArgumentForm, n_calls: int) -> int:
    """Return whether a chat with this many calls in a message fails, renders or shows the calls."""
    values = [{_KEY: f"value{i}"} for i in range(n_calls)]
    calls = [
        {
            "id": f"{_ID[:-1]}{i}",
            "type": "function",
            "function": {
                "name": _NAME,
                "arguments": json.dumps(value) if form == "text" else value,
            },
        }
        for i, value in enumerate(values)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    results: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": call["id"], "name": _NAME, "content": "answer"}
        for call in calls
    ]
    after = results or [{"role": "user", "content": "question"}]
    messages = [{"role": "user", "content": "question"}, message, *after]
    best = _FAILS
    for tools in (PROBE_TOOLS, None):
        text = rendered(render, {"messages": messages, "tools": tools})
        if text is None or "None" in text.replace("NoneType", ""):
            continue
        # Values in Python's notation, or as a text that is quoted once more, are not shown.
        shown = all(value[_KEY] in text for value in values)
        shown &= f"'{_KEY}'" not in text and f'\\"{_KEY}' not in text
        best = max(best, _SHOWS if shown else _RENDERS)
        if best == _SHOWS:
            break
    return best


def rendered(render: Render, values: Mapping[str, Any]) -> str | None:
    """Return the chat's text; None if there is an error."""
    try:
        return render(values)
    except Exception:  # of any type, as the template's own code raised it
        return None

"""Turns of a conversation: a limit on their number, and joining of neighbours. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .http_error import HttpError

__all__ = ["check_count", "joined_turn", "lines"]

_MOST = 2**15  # this many take about 0.1 s on the event loop


def check_count(messages: list[Any], where: str) -> None:
    """Raise HttpError if there are too many messages and parts. where: their name in the error.

    The count comes first, so that no message of an oversized request is read.
    """
    count, lists = 0, [messages]
    while lists:
        several = lists.pop()
        count += len(several)
        if count > _MOST:
            told = f"{where} has more than {_MOST} messages and parts of them; send fewer"
            raise HttpError(400, told, code="invalid_value", param=where)
        for one in several:
            if isinstance(one, dict):
                lists += (value for value in one.values() if isinstance(value, list))


def joined_turn(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return neighbouring messages of one role as one message.

    All are joined at once, because joining one after another would copy the text each time.
    """
    if len(parts) == 1:
        return parts[0]
    turn = {"role": parts[0]["role"], "content": _joined([part["content"] for part in parts])}
    if thought := lines(part.get("reasoning_content", "") for part in parts):
        turn["reasoning_content"] = thought
    if calls := [call for part in parts for call in part.get("tool_calls", ())]:
        turn["tool_calls"] = calls
    return turn


def _joined(contents: Sequence[str | list[dict[str, Any]]]) -> str | list[dict[str, Any]]:
    """Return contents as one: a text, or parts if one of them has parts."""
    texts = [one for one in contents if isinstance(one, str)]
    if len(texts) == len(contents):
        return lines(texts)
    joined: list[dict[str, Any]] = []
    for content in contents:
        if isinstance(content, str):
            content = [{"type": "text", "text": content}] if content else []
        joined += content
    return joined


def lines(texts: Iterable[str]) -> str:
    """Return the texts joined by newlines, without empty ones."""
    return "\n".join(text for text in texts if text)

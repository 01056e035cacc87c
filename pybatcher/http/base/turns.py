"""Turns of a conversation: how many there may be, and those of one role as one message. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .http_error import HttpError

__all__ = ["check_count", "joined_turn", "lines"]

_MOST = 2**15  # which are read in some 0.1 s, while all others wait


def check_count(messages: list[Any], where: str) -> None:
    """Refuse messages that are too many, with the parts in them. where: their name in the error.

    Of those that are too many, none is read. Raises HttpError.
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
    """Return neighbours of one role as one message.

    All at once: joined one after another, the text would be copied for each of them.
    """
    if len(parts) == 1:
        return parts[0]
    turn = {"role": parts[0]["role"], "content": lines(part["content"] for part in parts)}
    if thought := lines(part.get("reasoning_content", "") for part in parts):
        turn["reasoning_content"] = thought
    if calls := [call for part in parts for call in part.get("tool_calls", ())]:
        turn["tool_calls"] = calls
    return turn


def lines(texts: Iterable[str]) -> str:
    """Return texts one after another, without those that are empty."""
    return "\n".join(text for text in texts if text)

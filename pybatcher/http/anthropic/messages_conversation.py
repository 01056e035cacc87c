"""The conversation of a request of Anthropic's Messages API, as messages of `chat`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from ..base.sampling_fields import bad, read_text
from ..base.turns import check_count, joined_turn, lines

__all__ = ["read_turns", "text_of"]

_BILLING = "x-anthropic-billing-header"
_MESSAGES = "a list of at least one message"
_OF_USERS = "'text' or 'tool_result': this server reads nothing else in a user's turn"
_OF_ASSISTANTS = "'text', 'thinking' or 'tool_use': this server reads nothing else in such a turn"
_TEXT_ONLY = "'text': this server reads nothing else here"


def read_turns(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a body, of which no two neighbours have the same role, but for tools.

    System messages come first, as one. Later ones are no system messages for most templates: a
    quarter of 70 real ones refuse or lose them. They become a part of the user's turn, in the tag
    that agents mark their own words with.
    """
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise bad("messages", given, _MESSAGES)
    check_count(given, "messages")
    system = [_system(body["system"], "system")] if body.get("system") is not None else []
    turns: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # of tools, by the ids of their calls
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(message, dict):
            raise bad(where, message, "a map with role and content")
        content, where = message.get("content"), f"{where}.content"
        if role == "system":
            text = _system(content, where)
            if not turns:
                system.append(text)
            elif text:
                reminder = f"<system-reminder>\n{text}\n</system-reminder>"
                turns.append({"role": "user", "content": reminder})
        elif role == "user":
            turns += _user(content, where, names)
        elif role == "assistant":
            turns.append(_assistant(content, where, names))
        else:
            raise bad(f"messages[{i}].role", role, "'user', 'assistant' or 'system'")
    if text := lines(system):
        turns.insert(0, {"role": "system", "content": text})
    if not turns:
        raise bad("messages", given, _MESSAGES)
    return _joined(turns)


def _joined(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return turns of which neighbours of one role are one, as this API has it."""
    joined: list[dict[str, Any]] = []
    for role, own in groupby(turns, key=lambda turn: turn["role"]):
        parts = list(own)
        joined += parts if role == "tool" else [joined_turn(parts)]
    return joined


def _system(content: object, where: str) -> str:
    """Return the text of a system prompt, without the header of each request's bill.

    That header changes with every request: no prefix of the prompt would be found in the cache.
    """
    if isinstance(content, str):
        return _without_billing(read_text(content, where))
    if isinstance(content, list):
        check_count(content, where)
    return lines(map(_without_billing, _texts(content, where)))


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _user(content: object, where: str, names: Mapping[str, str]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"role": "user", "content": read_text(content, where)}]
    turns: list[dict[str, Any]] = []
    for block, at in _blocks(content, where):
        kind = block.get("type")
        if kind == "text":
            turns.append({"role": "user", "content": text_of(block, "text", at)})
        elif kind == "tool_result":
            turns.append(_tool_result(block, at, names))
        else:
            raise bad(f"{at}.type", kind, _OF_USERS)
    return turns or [{"role": "user", "content": ""}]


def _tool_result(block: dict[str, Any], where: str, names: Mapping[str, str]) -> dict[str, Any]:
    call_id = text_of(block, "tool_use_id", where)
    content = block.get("content")
    if content is None:
        content = ""
    elif isinstance(content, str):
        read_text(content, f"{where}.content")
    else:
        content = lines(_texts(content, f"{where}.content"))
    is_error = block.get("is_error")
    if is_error is not None and not isinstance(is_error, bool):
        raise bad(f"{where}.is_error", is_error, "true or false")
    if is_error:  # templates have no other place for it
        content = f"Error: {content}"
    turn = {"role": "tool", "tool_call_id": call_id, "content": content}
    return {**turn, "name": names[call_id]} if call_id in names else turn


def _assistant(content: object, where: str, names: dict[str, str]) -> dict[str, Any]:
    """Return an assistant's turn as `Completion.message` has it."""
    if isinstance(content, str):
        return {"role": "assistant", "content": read_text(content, where)}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, at in _blocks(content, where):
        kind = block.get("type")
        if kind == "text":
            texts.append(text_of(block, "text", at))
        elif kind == "thinking":
            thoughts.append(text_of(block, "thinking", at))
        elif kind == "tool_use":
            calls.append(_tool_use(block, at, names))
        elif kind != "redacted_thinking":  # which only its own model can read
            raise bad(f"{at}.type", kind, _OF_ASSISTANTS)
    turn: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thought := lines(thoughts):
        turn["reasoning_content"] = thought
    if calls:
        turn["tool_calls"] = calls
    return turn


def _tool_use(block: dict[str, Any], where: str, names: dict[str, str]) -> dict[str, Any]:
    call_id, name = text_of(block, "id", where), text_of(block, "name", where)
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise bad(f"{where}.input", arguments, "a map")
    names[call_id] = name
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _blocks(content: object, where: str) -> list[tuple[dict[str, Any], str]]:
    """Return the blocks of a content, each with its name in errors."""
    if not isinstance(content, list):
        raise bad(where, content, "a text or a list of blocks")
    blocks = []
    for i, block in enumerate(content):
        if not isinstance(block, dict):
            raise bad(f"{where}[{i}]", block, "a map with type")
        blocks.append((block, f"{where}[{i}]"))
    return blocks


def _texts(content: object, where: str) -> list[str]:
    """Return the texts of a content that may have no other blocks."""
    texts = []
    for block, at in _blocks(content, where):
        if block.get("type") != "text":
            raise bad(f"{at}.type", block.get("type"), _TEXT_ONLY)
        texts.append(text_of(block, "text", at))
    return texts


def text_of(block: Mapping[str, Any], name: str, where: str) -> str:
    """Return a field of a block or a tool. where: its name in errors. Raises HttpError."""
    return read_text(block.get(name), f"{where}.{name}")

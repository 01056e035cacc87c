"""Reads the input items of OpenAI's Responses API as messages of a chat. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from ..base.sampling_fields import bad, read_text
from ..base.turns import check_count, joined_turn
from .chat_completions import content_of, read_image_part

__all__ = ["read_input"]

_ROLES = ("user", "assistant", "system", "developer")
_TYPES = "'message', 'function_call', 'function_call_output' or 'reasoning'"
_PARTS = "'input_text' or 'output_text', or 'input_image' of a user or a tool"
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def read_input(given: object, instructions: object = None) -> list[dict[str, Any]]:
    """Return the messages of an input.

    given: a text of the user, or items. The items of one turn of the assistant (reasoning, text,
        calls) become one message, as chat templates expect.
    instructions: None, or a text before the input. It is joined with the system and developer
        messages at the beginning of the input, because many templates accept one system message
        only.

    Raises HttpError.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": read_text(instructions, "instructions")})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": read_text(given, "input")}]
    if not isinstance(given, list) or not given:
        raise bad("input", given, "a text, or a list of at least one item")
    check_count(given, "input")
    messages += (_message(item, f"input[{index}]") for index, item in enumerate(given))
    return _joined(messages)


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with neighbours of the assistant, and the first system ones, joined."""
    joined: list[dict[str, Any]] = []
    for role, own in groupby(messages, key=lambda message: message["role"]):
        if role == "assistant":
            joined.append(joined_turn(list(own)))
        elif role == "system" and not joined:
            text = "\n\n".join(message["content"] for message in own)
            joined.append({"role": "system", "content": text})
        else:
            joined += own
    return joined


def _message(item: object, where: str) -> dict[str, Any]:
    """Return an item as a message of its own."""
    if not isinstance(item, dict):
        raise bad(where, item, "a map with type, or with role and content")
    kind = item.get("type")
    match kind:
        case "message" | None:
            return _of_role(item, where)
        case "reasoning":
            text = _reasoning(item, where)
            message = {"role": "assistant", "content": ""}
            return {**message, "reasoning_content": text} if text else message
        case "function_call":
            return {"role": "assistant", "content": "", "tool_calls": [_call(item, where)]}
        case "function_call_output":
            call_id = read_text(item.get("call_id"), f"{where}.call_id", may_be_empty=False)
            return {
                "role": "tool",
                "tool_call_id": call_id,
                "content": _output(item.get("output"), f"{where}.output"),
            }
        case "item_reference":
            raise bad(f"{where}.type", kind, f"{_TYPES}: this server keeps no items to refer to")
        case _:
            raise bad(f"{where}.type", kind, f"{_TYPES}: this server reads no other")


def _of_role(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"{where}.role", role, "'user', 'assistant', 'system' or 'developer'")
    given, where = item.get("content"), f"{where}.content"
    if role == "user" and isinstance(given, list):
        return {"role": role, "content": content_of(_parts(given, where))}
    content = _content(given, where)
    return {"role": "system" if role == "developer" else role, "content": content}


def _output(output: object, where: str) -> str | list[dict[str, Any]]:
    """Return the output of a tool: a text, or parts if it has images."""
    if isinstance(output, list):
        parts = _parts(output, where)
        if not all(isinstance(part, str) for part in parts):
            return content_of(parts)
    return _content(output, where)


def _parts(given: list[Any], where: str) -> list[str | dict[str, Any]]:
    """Return the texts and images of a content."""
    parts: list[str | dict[str, Any]] = []
    for index, part in enumerate(given):
        at = f"{where}[{index}]"
        if isinstance(part, dict) and part.get("type") in ("input_image", "image_url"):
            parts.append(read_image_part(part, at))
        else:
            parts.append(_part(part, at))
    return parts


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    """Return the text of reasoning: the thoughts of the model, or else their summary."""
    for field in ("content", "summary"):
        if item.get(field) is not None and (text := _content(item[field], f"{where}.{field}")):
            return text
    return ""


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    name = read_text(item.get("name"), f"{where}.name", may_be_empty=False)
    arguments = item.get("arguments")
    function = {"name": name, "arguments": read_text(arguments, f"{where}.arguments")}
    call_id = read_text(item.get("call_id"), f"{where}.call_id", may_be_empty=False)
    return {"id": call_id, "type": "function", "function": function}


def _content(content: object, where: str) -> str:
    """Return the text of a content: a text, or a list of text parts."""
    if isinstance(content, str):
        return read_text(content, where)
    if not isinstance(content, list):
        raise bad(where, content, "a text, or a list of parts")
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if not isinstance(part, dict):
        raise bad(where, part, "a map with type and text")
    kind = part.get("type")
    if kind == "refusal":
        return read_text(part.get("refusal"), f"{where}.refusal")
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise bad(f"{where}.type", kind, _PARTS)
    return read_text(part.get("text"), f"{where}.text")

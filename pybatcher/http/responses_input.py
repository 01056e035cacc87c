"""The input of OpenAI's Responses API, items of many types, as messages of a chat. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .sampling_fields import bad, read_text

__all__ = ["read_input"]

_ROLES = ("user", "assistant", "system", "developer")
_TYPES = "'message', 'function_call', 'function_call_output' or 'reasoning'"
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def read_input(given: object, instructions: object = None) -> list[dict[str, Any]]:
    """Return the messages of an input.

    given: a text of the user, or items. What one turn of the assistant has said as several items
        (reasoning, text, calls) is one message, which is what chat templates know.
    instructions: None, or a text that comes before. With the messages of the system and of
        developers that the input begins with it is one message, since many templates take no
        second one.

    Raises HttpError.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": read_text(instructions, "instructions")})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": read_text(given, "input")}]
    if not isinstance(given, list) or not given:
        raise bad("input", given, "a text, or a list of at least one item")
    for index, item in enumerate(given):
        _add(messages, item, f"input[{index}]")
    return messages


def _add(messages: list[dict[str, Any]], item: object, where: str) -> None:
    if not isinstance(item, dict):
        raise bad(where, item, "a map with type, or with role and content")
    kind = item.get("type")
    match kind:
        case "message" | None:
            _add_message(messages, item, where)
        case "reasoning":
            _append(_assistant(messages), "reasoning_content", _reasoning(item, where))
        case "function_call":
            calls = _assistant(messages).setdefault("tool_calls", [])
            calls.append(_call(item, where))
        case "function_call_output":
            call_id = read_text(item.get("call_id"), f"{where}.call_id", may_be_empty=False)
            output = _content(item.get("output"), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        case "item_reference":
            raise bad(f"{where}.type", kind, f"{_TYPES}: this server keeps no items to refer to")
        case _:
            raise bad(f"{where}.type", kind, f"{_TYPES}: this server reads no other")


def _add_message(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"{where}.role", role, "'user', 'assistant', 'system' or 'developer'")
    content = _content(item.get("content"), f"{where}.content")
    if role == "assistant":
        _append(_assistant(messages), "content", content)
    elif role == "user":
        messages.append({"role": "user", "content": content})
    elif len(messages) == 1 and messages[0]["role"] == "system":
        messages[0]["content"] += f"\n\n{content}"
    else:
        messages.append({"role": "system", "content": content})


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's message that goes on; a new one after those of others."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _append(message: dict[str, Any], field: str, text: str) -> None:
    before = message.get(field)
    if text or field == "content":
        message[field] = f"{before}\n{text}" if before and text else before or text


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    """Return the text of reasoning: what the model thought, else the summary of it."""
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
    """Return the text of a content: a text, or a list of parts that are texts."""
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
        raise bad(f"{where}.type", kind, "'input_text' or 'output_text': this server reads texts")
    return read_text(part.get("text"), f"{where}.text")

"""`read_messages`: converts the messages of a chat to plain data for chat templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from ..errors import InvalidRequestError
from ..errors.checks import REQUEST, type_name
from .chat_images import IMAGE_PART
from .partial_json import cut_object
from .plain_values import PlainReader, plain_json

__all__ = ["ArgumentForm", "PartJoin", "read_messages", "unread_arguments"]

PartJoin = tuple[str, bool]
"""The way a template joins text parts: the text between them, and whether it strips each part."""

ArgumentForm = Literal["mapping", "text"]
"""The form in which a template expects arguments of calls: a mapping, or its JSON text."""

_MAX_ARGUMENTS_CHARACTERS = 2**20  # of a JSON text, whose parsed value takes far more memory
_PLAIN = "made of texts, numbers, lists and mappings"
_TEXT_FIELDS = ("name", "tool_call_id", "reasoning_content", "reasoning", "thinking")
# the first field that is present counts
_REASONING = ("reasoning_content", "thinking", "reasoning")


def read_messages(
    messages: object,
    *,
    keeps_null: bool,
    arguments: ArgumentForm,
    joins: Mapping[str, PartJoin] | None = None,
) -> list[dict[str, Any]]:
    """Return the messages as plain data, the only kind that a template may see.

    keeps_null: an assistant's content that is None stays None; else it becomes an empty text.
    arguments: the form to convert arguments of calls to. A JSON text that was cut, as a call that
        `max_tokens` cut has it, becomes a mapping of its complete members. Another text that is no
        JSON object is unchanged.
    joins: how text parts of a message become one text, by role; in other roles by a line feed. A
        message with an image part keeps its parts.

    Raises InvalidRequestError, which names the field.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        found = "empty" if isinstance(messages, (list, tuple)) else type_name(messages)
        raise InvalidRequestError(
            f"messages is {found}; it must be a list of at least one message", field="messages"
        )
    reader = _MessageReader(keeps_null, arguments, joins or {})
    with REQUEST.reading("messages", messages, _PLAIN):
        return [reader.message(one, f"messages[{i}]") for i, one in enumerate(messages)]


def unread_arguments(messages: list[dict[str, Any]]) -> str:
    """Return the name of the first arguments of a call that are a text; "" if there are none."""
    for index, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls", ())):
            inner = ".function" if "function" in call else ""
            if isinstance(call.get("function", call)["arguments"], str):
                return f"messages[{index}].tool_calls[{number}]{inner}.arguments"
    return ""


class _MessageReader:
    def __init__(
        self, keeps_null: bool, arguments: ArgumentForm, joins: Mapping[str, PartJoin]
    ) -> None:
        self._values = PlainReader("messages are too large")
        self._keeps_null = keeps_null
        self._arguments = arguments
        self._joins = joins

    def message(self, message: object, where: str) -> dict[str, Any]:
        if not isinstance(message, Mapping):
            raise InvalidRequestError(
                f"{where} is {type_name(message)}; it must be a mapping with role and content",
                field=where,
            )
        plain = self._values.mapping(message, where, 0)
        role = plain.get("role")
        if not isinstance(role, str):
            raise REQUEST.bad(f"{where}.role", role, "a text")
        for field in _TEXT_FIELDS:
            if not isinstance(plain.get(field), (str, type(None))):
                raise REQUEST.bad(f"{where}.{field}", plain[field], "a text, or None")
        self._set_content(plain, where)
        self._set_calls(plain, where)
        return _with_reasoning(plain)

    def _set_content(self, message: dict[str, Any], where: str) -> None:
        is_assistant = message["role"] == "assistant"
        content = message.get("content", None if is_assistant else "")
        if isinstance(content, list):
            parts = [_part(item, f"{where}.content[{i}]") for i, item in enumerate(content)]
            if IMAGE_PART in parts:
                message["content"] = parts
                return
            texts = [part["text"] for part in parts]
            if len(texts) > 1:
                between, strips = self._joins.get(message["role"], ("\n", False))
                texts = [between.join(one.strip() if strips else one for one in texts)]
            message["content"] = "".join(texts)
        elif content is None and is_assistant:  # a turn with a call and no text
            message["content"] = None if self._keeps_null else ""
        elif not isinstance(content, str):
            raise InvalidRequestError(
                f"{where}.content is {type_name(content)}; it must be a text or a list of text "
                "parts and images",
                field=f"{where}.content",
            )

    def _set_calls(self, message: dict[str, Any], where: str) -> None:
        """Check an assistant's calls. An empty list is removed, since some templates only test
        whether the field exists.
        """
        calls = message.get("tool_calls")
        if message["role"] != "assistant" or not calls:
            if calls is not None and calls != []:
                raise REQUEST.bad(f"{where}.tool_calls", calls, "a list of an assistant's calls")
            message.pop("tool_calls", None)
            return
        if not isinstance(calls, list):
            raise REQUEST.bad(f"{where}.tool_calls", calls, "a list of calls")
        for index, call in enumerate(calls):
            self._set_call(call, f"{where}.tool_calls[{index}]")

    def _set_call(self, call: object, where: str) -> None:
        """Check a call: `{"id", "type", "function": {"name", "arguments"}}`, or its function."""
        if not isinstance(call, dict):
            raise InvalidRequestError(
                f"{where} is {type_name(call)}; it must be a mapping", field=where
            )
        if call.get("type", "function") != "function":
            raise REQUEST.bad(f"{where}.type", call["type"], "'function'")
        if not isinstance(call.get("id"), (str, type(None))):
            raise REQUEST.bad(f"{where}.id", call["id"], "a text, or None")
        function = call
        if "function" in call:
            function, where = call["function"], f"{where}.function"
        if not isinstance(function, dict):
            raise REQUEST.bad(where, function, "a mapping with name and arguments")
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise REQUEST.bad(f"{where}.name", name, "the name of a tool")
        function["arguments"] = self._read_arguments(
            function.get("arguments"), f"{where}.arguments"
        )

    def _read_arguments(self, arguments: object, where: str) -> dict[str, Any] | str:
        if arguments is None or arguments == "":
            arguments = {}
        if isinstance(arguments, str):
            if len(arguments) > _MAX_ARGUMENTS_CHARACTERS:
                raise InvalidRequestError(
                    f"{where} has {len(arguments)} characters; it must have at most "
                    f"{_MAX_ARGUMENTS_CHARACTERS}",
                    field=where,
                )
            if self._arguments == "text":
                return arguments
            found = _json_object(arguments)
            return arguments if found is None else self._values.mapping(found, where, 0)
        if not isinstance(arguments, dict):
            raise REQUEST.bad(where, arguments, "a mapping, or the JSON text of one")
        if self._arguments == "mapping":
            return arguments
        return json.dumps(arguments, ensure_ascii=False)


def _part(part: object, where: str) -> dict[str, Any]:
    """Return a content part as templates see it: without fields that they do not know."""
    kind = part.get("type") if isinstance(part, dict) else type_name(part)
    if not isinstance(part, dict) or kind not in ("text", "image"):
        raise REQUEST.bad(where, kind, "of type 'text' or 'image'")
    if kind == "image":
        return IMAGE_PART
    if not isinstance(part.get("text"), str):
        raise REQUEST.bad(f"{where}.text", part.get("text"), "a text")
    return {"type": "text", "text": part["text"]}


def _json_object(text: str) -> dict[Any, Any] | None:
    """Return the object of a JSON text, or of its beginning if it was cut. None: it is none."""
    try:
        value = plain_json(text)
    except json.JSONDecodeError as error:
        return cut_object(text) if _ends_early(error) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _ends_early(error: json.JSONDecodeError) -> bool:
    """Return whether a text is no JSON because its end is missing."""
    rest = error.doc[error.pos :].strip()
    return error.msg.startswith(("Unterminated string", "Invalid \\u")) or any(
        word.startswith(rest) for word in ("true", "false", "null", "-")
    )


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with its reasoning under the two names that templates use.

    transformers does so too: most templates read `reasoning_content`, gpt-oss's reads `thinking`.
    """
    found = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    if found is None:
        return message
    return {"thinking": found, **message, "reasoning_content": found}

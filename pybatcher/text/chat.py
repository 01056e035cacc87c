"""`ChatTemplate`: renders a conversation to the prompt format that the model was trained on."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequestError, ModelFormatError
from ..errors.checks import REQUEST, plain_float, plain_int, plain_text, short, type_name

if TYPE_CHECKING:
    from .sandbox import Sandbox

__all__ = ["ChatTemplate"]

_ASKS_FOR_NULL = re.compile(r"content['\"]?\]?\s*(is\s+(not\s+)?|[=!]=\s*)none", re.IGNORECASE)
"""Matches a template that handles a content of None itself. Another would write "None"."""

_MAX_DEPTH = 32
_MAX_UNITS = 2**20  # each value is a unit, and so are 64 characters
_CHARACTERS_PER_UNIT = 64


class ChatTemplate:
    """Renders messages with the checkpoint's own Jinja template. Any thread may use it.

    source: the template; None: the checkpoint has none, `available` is False, and
        every `render` is an InvalidRequestError.
    special_tokens: variables of the template: "bos_token", "eos_token", ...

    The template comes with the checkpoint and is not trusted: it runs in a `Sandbox`. A broken
    template affects chats only: the error is raised by `render`. Jinja is imported and the
    template compiled by the first `render`, so that a model is opened faster.
    """

    def __init__(
        self, source: str | None, *, special_tokens: Mapping[str, str] | None = None
    ) -> None:
        self.available = source is not None
        self._special_tokens = dict(special_tokens or {})
        self._source = source
        self._compiling = threading.Lock()
        self._sandbox: Sandbox | None = None
        self._asks_for_null = source is not None and bool(_ASKS_FOR_NULL.search(source))
        self._compile_error: str | None = None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """Return the prompt's text, special tokens included: encode it without adding any.

        messages: [{"role": str, "content": str | [{"type": "text", "text": str}]}, ...],
            further fields as the template knows them. An assistant's content may be None,
            which is rendered as no text, or as the template has it.
        add_generation_prompt: end with the header of the assistant's turn.

        Raises InvalidRequestError for messages that have another shape or that
        the template refuses, ModelFormatError for a template that is broken,
        asks for more than the sandbox gives, or does not come to an end.
        """
        if self._source is None:
            raise InvalidRequestError(
                "the model has no chat template, so that it takes a prompt, not messages"
            )
        sandbox = self._compiled(self._source)
        variables = {
            "messages": _read(messages, self._asks_for_null),
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
            **self._special_tokens,
        }
        from jinja2.exceptions import UndefinedError

        from .sandbox import TemplateRefusedError

        try:
            return sandbox.render(variables)
        except TemplateRefusedError as error:
            raise InvalidRequestError(f"messages: the chat template says: {error}") from error
        except UndefinedError as error:
            raise InvalidRequestError(f"messages: the chat template needs more: {error}") from error
        except Exception as error:  # of any type: the template's own code raised it
            raise _template_error(error) from error

    def _compiled(self, source: str) -> Sandbox:
        from .sandbox import Sandbox

        with self._compiling:
            if self._sandbox is None and self._compile_error is None:
                try:
                    self._sandbox = Sandbox(source)
                except Exception as error:  # the parser and Python's compiler have many
                    self._compile_error = str(_template_error(error))
        if self._sandbox is None:
            raise ModelFormatError(self._compile_error)
        return self._sandbox


def _template_error(error: Exception) -> ModelFormatError:
    from jinja2.exceptions import SecurityError, TemplateError

    from .sandbox import TemplateLimitError

    if isinstance(error, (TemplateLimitError, SecurityError)):
        return ModelFormatError(f"chat_template: stopped: {error}")
    if isinstance(error, (RecursionError, MemoryError)):
        return ModelFormatError("chat_template: stopped: it is nested too deeply")
    if isinstance(error, TemplateError):
        return ModelFormatError(f"chat_template: not a valid template: {error}")
    return ModelFormatError(f"chat_template: failed: {type(error).__name__}: {error}")


def _read(messages: object, keeps_null: bool) -> list[dict[str, Any]]:
    """Return the messages as plain data, which is all that a template may see.

    keeps_null: an assistant's content that is None stays so; else it becomes an empty text.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        found = "empty" if isinstance(messages, (list, tuple)) else type_name(messages)
        raise InvalidRequestError(f"messages is {found}; it must be a list of at least one message")
    reader = _Reader()
    with REQUEST.reading("messages", messages, "made of texts, numbers, lists and mappings"):
        return [_checked(one, i, reader, keeps_null) for i, one in enumerate(messages)]


def _checked(message: object, index: int, reader: _Reader, keeps_null: bool) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            f"{where} is {type_name(message)}; it must be a mapping with role and content"
        )
    plain = reader.mapping(message, where, 0)
    role, content = plain.get("role"), plain.get("content", "")
    if not isinstance(role, str):
        raise REQUEST.bad(f"{where}.role", role, "a text")
    if isinstance(content, list):
        for part, item in enumerate(content):
            _check_part(item, f"{where}.content[{part}]")
        plain["content"] = "\n".join(item["text"] for item in content)
    elif content is None and role == "assistant":  # a turn with a tool call and no text
        plain["content"] = None if keeps_null else ""
    elif not isinstance(content, str):
        raise InvalidRequestError(
            f"{where}.content is {type_name(content)}; it must be a text or a list of text parts"
        )
    return plain


def _check_part(part: object, where: str) -> None:
    if not isinstance(part, dict) or part.get("type") != "text":
        found = part.get("type") if isinstance(part, dict) else type_name(part)
        raise REQUEST.bad(where, found, "of type 'text'")
    if not isinstance(part.get("text"), str):
        raise REQUEST.bad(f"{where}.text", part.get("text"), "a text")


class _Reader:
    """Copies values of the kinds that JSON has, a bounded number of them.

    Otherwise lists that contain each other many times over would take for ever.
    """

    def __init__(self) -> None:
        self._left = _MAX_UNITS

    def mapping(self, value: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
        """Return a mapping as a dictionary. Raises InvalidRequestError."""
        plain = {}
        for key, one in value.items():
            name = plain_text(key)
            if name is None:
                raise InvalidRequestError(
                    f"{where} is {type_name(value)} with the field {short(key)}; "
                    "field names must be texts"
                )
            self._spend(name, where)
            plain[name] = self.value(one, f"{where}.{short(name)[1:-1]}", depth + 1)
        return plain

    def value(self, value: object, where: str, depth: int) -> Any:
        """Return a value as plain data. Raises InvalidRequestError."""
        if depth > _MAX_DEPTH:
            raise InvalidRequestError(f"{where} is nested more than {_MAX_DEPTH} levels deep")
        text = plain_text(value)
        self._spend(text or "", where)
        if text is not None:
            REQUEST.unicode(where, text)
            return text
        if value is None or type(value) in (int, float, bool):
            return value
        if isinstance(value, (list, tuple)):  # before what has to ask an abstract class
            return [self.value(one, f"{where}[{i}]", depth + 1) for i, one in enumerate(value)]
        if isinstance(value, (dict, Mapping)):
            return self.mapping(value, where, depth)
        number: float | None = plain_int(value)
        if number is None:
            number = plain_float(value)
        if number is not None:
            return number
        raise InvalidRequestError(
            f"{where} is {type_name(value)}; it must be made of texts, numbers, lists and mappings"
        )

    def _spend(self, text: str, where: str) -> None:
        self._left -= 1 + len(text) // _CHARACTERS_PER_UNIT
        if self._left < 0:
            raise InvalidRequestError(f"{where} is one value too many: messages are too large")

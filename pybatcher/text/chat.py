"""`ChatTemplate`: a conversation rendered to the prompt that the model was trained on."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequestError, ModelFormatError

if TYPE_CHECKING:
    from .sandbox import Sandbox

__all__ = ["ChatTemplate"]

_MAX_DEPTH = 32


class ChatTemplate:
    """Renders messages with the checkpoint's own Jinja template. Any thread may use it.

    source: the template; None: the checkpoint has none, `available` is False, and
        every `render` is an InvalidRequestError.
    special_tokens: variables of the template: "bos_token", "eos_token", ...

    The template comes with the checkpoint and is not trusted: it runs in a `Sandbox`. One that
    is broken harms only chats: the error is raised by `render`. Jinja is imported and the
    template compiled by the first `render`, so that a model is open sooner.
    """

    def __init__(
        self, source: str | None, *, special_tokens: Mapping[str, str] | None = None
    ) -> None:
        self.available = source is not None
        self._special_tokens = dict(special_tokens or {})
        self._source = source
        self._compiling = threading.Lock()
        self._sandbox: Sandbox | None = None
        self._compile_error: str | None = None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The prompt's text, special tokens included: encode it without adding any.

        messages: [{"role": str, "content": str | [{"type": "text", "text": str}]}, ...],
            further fields as the template knows them.
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
            "messages": [_checked(message, i) for i, message in enumerate(_listed(messages))],
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
        except Exception as error:  # whatever a template's own code runs into
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


def _listed(messages: object) -> Sequence[Any]:
    if isinstance(messages, (list, tuple)) and messages:
        return messages
    found = "empty" if isinstance(messages, (list, tuple)) else type(messages).__name__
    raise InvalidRequestError(f"messages is {found}; it must be a list of at least one message")


def _checked(message: object, index: int) -> dict[str, Any]:
    """The message as plain data, which is all that a template may see."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            f"{where} is {type(message).__name__}; it must be a mapping with role and content"
        )
    plain: dict[str, Any] = {}
    for key, value in message.items():
        if not isinstance(key, str):
            raise InvalidRequestError(f"{where} has the field {key!r}; field names must be texts")
        plain[key] = _plain(value, f"{where}.{key}")
    if not isinstance(plain.get("role"), str):
        raise InvalidRequestError(f"{where}.role is {plain.get('role')!r}; it must be a text")
    content = plain.get("content", "")
    if isinstance(content, list):
        for part, item in enumerate(content):
            _check_part(item, f"{where}.content[{part}]")
        plain["content"] = "\n".join(item["text"] for item in content)
    elif not isinstance(content, str) and content is not None:
        raise InvalidRequestError(
            f"{where}.content is {type(content).__name__}; "
            "it must be a text or a list of text parts"
        )
    return plain


def _check_part(part: object, where: str) -> None:
    if not isinstance(part, dict) or part.get("type") != "text":
        found = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise InvalidRequestError(f"{where} is {found!r}; it must be of type 'text'")
    if not isinstance(part.get("text"), str):
        raise InvalidRequestError(f"{where}.text is {part.get('text')!r}; it must be a text")


def _plain(value: object, where: str, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise InvalidRequestError(f"{where} is nested more than {_MAX_DEPTH} levels deep")
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):  # an enum, say
        return str.__str__(value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(k): _plain(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise InvalidRequestError(
        f"{where} is {type(value).__name__}; it must be made of texts, numbers, lists and mappings"
    )

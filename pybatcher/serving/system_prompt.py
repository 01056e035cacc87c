"""`SystemPrompt`: a text that comes before every prompt, and its shared tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidRequestError, ModelFormatError
from ..errors.checks import OPTION
from ..scheduling import common_length
from ..text import ChatTemplate
from .prompts import PromptReader, check_messages

__all__ = ["SHARED_PREFIXES", "SystemPrompt", "check_system_prompt"]

SHARED_PREFIXES = 2
"""The number of prefixes that a system prompt shares: its own tokens, and the common beginning of
all chats.
"""

_PROBE = "pybatcher_probe"
_PROBES = ("A", "1")  # two user messages that differ in their first character


def check_system_prompt(text: object) -> str | None:
    """Return a text that can be a system prompt, or None. Raises ConfigError."""
    if text is None:
        return None
    wanted = "a text of at least one character, or None"
    return OPTION.text("system_prompt", text, wanted, may_be_empty=False)


class SystemPrompt:
    """A text that comes before text prompts unchanged, and into chats as their system message.

    With a template that refuses or leaves out a system message (Gemma 2), the text begins the first
    user message, as in llama.cpp.

    tokens: the beginning of every text prompt. For any thread.

    Raises InvalidRequestError for a text that the model cannot read, and if its template shows the
    text in neither place. A template that is broken affects chats only.
    """

    def __init__(self, text: str, prompts: PromptReader, chat_template: ChatTemplate) -> None:
        self._text = text
        self._prompts = prompts
        self._chat_template = chat_template
        self.tokens = prompts.encode(text, add_special_tokens=True)
        self._is_message = True
        if chat_template.available:
            is_shown = self._shows(_PROBE, is_message=True)
            in_user_message = is_shown or self._shows(_PROBE, is_message=False)
            self._is_message = bool(is_shown) or in_user_message is None
            if in_user_message is False:
                raise InvalidRequestError(
                    "the chat template shows neither a system message nor a user message that "
                    "begins with the text; leave it out, and put it into each chat"
                )

    def _shows(self, text: str, *, is_message: bool) -> bool | None:
        """Return whether a chat shows the text as its system message, or in the user message.

        None if the template is broken.
        """
        messages = _with_system(text, ({"role": "user", "content": "A"},), is_message=is_message)
        try:
            return text in self._chat_template.render(messages)
        except InvalidRequestError:
            return False
        except ModelFormatError:
            return None

    def before_messages(self, messages: object) -> tuple[Any, ...]:
        """Return the messages, with the text as or in place of a system message if there is none.

        Raises InvalidRequestError for anything but a list of messages.
        """
        checked = check_messages(messages)
        if _is_system(checked[0]):
            return checked
        return _with_system(self._text, checked, is_message=self._is_message)

    def chat_tokens(self, is_wanted: Callable[[], bool]) -> tuple[int, ...]:
        """Return the longest common prefix of two chats that differ in the user's words only.

        is_wanted: asked while the chats are rendered; False ends that with an error.
        """
        one, other = (
            self._prompts.encode(
                self._chat_template.render(
                    self.before_messages([{"role": "user", "content": content}]),
                    goes_on=is_wanted,
                ),
                add_special_tokens=False,
            )
            for content in _PROBES
        )
        return one[: common_length(one, other)]


def _with_system(text: str, messages: tuple[Any, ...], *, is_message: bool) -> tuple[Any, ...]:
    """Return messages with a system message, or with its text in the first user message."""
    if not is_message:
        for index, message in enumerate(messages):
            if isinstance(message, Mapping) and message.get("role") == "user":
                content = message.get("content")
                if isinstance(content, str):
                    content = f"{text}\n{content}"
                elif isinstance(content, list):
                    content = _before_parts(text, content)
                changed = {**message, "content": content}
                return (*messages[:index], changed, *messages[index + 1 :])
        return ({"role": "user", "content": text}, *messages)
    return ({"role": "system", "content": text}, *messages)


def _before_parts(text: str, parts: list[Any]) -> list[Any]:
    """Return the parts of a content with a text before the first of them."""
    match parts:
        case [{"type": "text", "text": str(own), **others}, *more]:
            return [{**others, "type": "text", "text": f"{text}\n{own}"}, *more]
    return [{"type": "text", "text": text}, *parts]


def _is_system(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "system"

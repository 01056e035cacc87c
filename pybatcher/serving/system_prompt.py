"""`SystemPrompt`: a text that comes before every prompt, and which tokens of it can be shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError
from ..scheduling import common_length
from ..text import ChatTemplate
from .prompts import PromptReader

__all__ = ["SHARED_PREFIXES", "SystemPrompt", "check_system_prompt"]

SHARED_PREFIXES = 2
"""What can be shared of a system prompt: its own tokens, and how all chats begin."""

_PROBES = ("A", "1")  # two user messages that differ in their first character


def check_system_prompt(text: object) -> str | None:
    """Raise ConfigError for what can be no system prompt."""
    if text is None or (isinstance(text, str) and text):
        return text
    raise ConfigError(
        f"system_prompt is {text!r}; it must be a text of at least one character, or None"
    )


class SystemPrompt:
    """Goes before prompts as it is, and into chats as their system message.

    tokens: what every prompt that is a text begins with. Any thread may use it.
    """

    def __init__(self, text: str, prompts: PromptReader, chat_template: ChatTemplate) -> None:
        self._text = text
        self._prompts = prompts
        self._chat_template = chat_template
        self.tokens = prompts.encode(text, add_special_tokens=True)

    def before_messages(self, messages: object) -> Any:
        """The messages, with the text as system message where they bring none of their own."""
        if not isinstance(messages, Sequence) or not messages or _is_system(messages[0]):
            return messages
        return [{"role": "system", "content": self._text}, *messages]

    def chat_tokens(self) -> tuple[int, ...]:
        """The longest common prefix of two chats that differ in nothing but the user's words."""
        one, other = (
            self._prompts.encode(
                self._chat_template.render(
                    self.before_messages([{"role": "user", "content": content}])
                ),
                add_special_tokens=False,
            )
            for content in _PROBES
        )
        return one[: common_length(one, other)]


def _is_system(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "system"

"""`SystemPrompt`: a text that comes before every prompt, and its shared tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors.checks import OPTION
from ..scheduling import common_length
from ..text import ChatTemplate
from .prompts import PromptReader, check_messages

__all__ = ["SHARED_PREFIXES", "SystemPrompt", "check_system_prompt"]

SHARED_PREFIXES = 2
"""The number of prefixes that a system prompt shares: its own tokens, and the common beginning of
all chats.
"""

_PROBES = ("A", "1")  # two user messages that differ in their first character


def check_system_prompt(text: object) -> str | None:
    """Return a text that can be a system prompt, or None. Raises ConfigError."""
    if text is None:
        return None
    wanted = "a text of at least one character, or None"
    return OPTION.text("system_prompt", text, wanted, may_be_empty=False)


class SystemPrompt:
    """A text that comes before text prompts unchanged, and into chats as their system message.

    tokens: the beginning of every text prompt. For any thread.
    """

    def __init__(self, text: str, prompts: PromptReader, chat_template: ChatTemplate) -> None:
        self._text = text
        self._prompts = prompts
        self._chat_template = chat_template
        self.tokens = prompts.encode(text, add_special_tokens=True)

    def before_messages(self, messages: object) -> tuple[Any, ...]:
        """Return the messages, with the text as system message if they have none.

        Raises InvalidRequestError for anything but a list of messages.
        """
        checked = check_messages(messages)
        if _is_system(checked[0]):
            return checked
        return ({"role": "system", "content": self._text}, *checked)

    def chat_tokens(self) -> tuple[int, ...]:
        """Return the longest common prefix of two chats that differ in the user's words only."""
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

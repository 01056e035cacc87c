"""`ChatSettings`: the options of a chat beside its messages and its sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import InvalidRequestError
from ..errors.checks import REQUEST, short
from ..text.plain_values import PlainReader
from .arguments import is_chat
from .options import check_known

__all__ = ["CHAT_OPTIONS", "ChatSettings", "settings_of"]

_MOST_REASONING = 2**31 - 1
_EFFORT = "a text such as 'low', 'medium' or 'high', of at most 64 characters, or None"
_KWARGS = "a mapping of names to texts, numbers, lists and mappings, or None"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """The options that only `chat` has, without the sampling parameters. Not checked yet.

    `AnyBatcher.chat` documents them.
    """

    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    max_reasoning_tokens: int | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None

    def template_variables(self) -> dict[str, Any]:
        """Return the variables of the chat template. Raises InvalidRequestError."""
        given = self.chat_template_kwargs
        variables: dict[str, Any] = {}
        if given is not None:
            with REQUEST.reading("chat_template_kwargs", given, _KWARGS):
                if not isinstance(given, Mapping):
                    raise REQUEST.bad("chat_template_kwargs", given, _KWARGS)
                reader = PlainReader("chat_template_kwargs are too large")
                variables = reader.mapping(given, "chat_template_kwargs", 0)
        if self.enable_thinking is not None:
            variables["enable_thinking"] = REQUEST.flag("enable_thinking", self.enable_thinking)
        if self.reasoning_effort is not None:
            effort = REQUEST.text("reasoning_effort", self.reasoning_effort, _EFFORT)
            if len(effort) > 64:
                raise REQUEST.bad("reasoning_effort", effort, _EFFORT)
            variables["reasoning_effort"] = effort
        return variables

    def reasoning_budget(self) -> int | None:
        """Return the most tokens of reasoning; None: any number. Raises InvalidRequestError."""
        most = self.max_reasoning_tokens
        if most is None:
            return None
        return REQUEST.whole("max_reasoning_tokens", most, 1, _MOST_REASONING)

    def is_parallel(self) -> bool:
        """Return whether a response may have several calls. Raises InvalidRequestError."""
        return REQUEST.flag("parallel_tool_calls", self.parallel_tool_calls)

    @classmethod
    def take(cls, options: dict[str, Any]) -> ChatSettings:
        """Take the options of a chat out of `options`."""
        return cls(**{name: options.pop(name) for name in CHAT_OPTIONS if name in options})


def settings_of(content: object, options: Mapping[str, Any]) -> ChatSettings | None:
    """Return the settings of messages that are only tokenized; None for a prompt."""
    if is_chat(content):
        own = dict(options)
        chat = ChatSettings.take(own)
        check_known(own, CHAT_OPTIONS)
        return chat
    if options:
        raise InvalidRequestError(
            f"{short(next(iter(options)))} goes with messages, and the content is a prompt"
        )
    return None


CHAT_OPTIONS = tuple(field.name for field in fields(ChatSettings))
"""The names of the options."""

"""The kinds of questions: one frozen dataclass each. Their fields are not checked yet.

A new kind of question is a dataclass here, its codec in `sidecar/protocol/codecs.py`, its handler
in `serving/service.py`, and its methods in `calls/any_batcher.py` and `calls/threads/calls.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequestError
from ..errors.checks import REQUEST
from .call import CallOptions, Messages, Prompt, Question
from .chat_settings import ChatSettings, settings_of
from .model_info import ModelInfo
from .prefix_info import Prefixes, PrefixInfo
from .scores import Embedding, Score
from .statistics import BatcherStatistics, Health

__all__ = [
    "AddPrefix",
    "Describe",
    "DescribeModel",
    "Detokenize",
    "DetokenizeEach",
    "EmbedTexts",
    "ListPrefixes",
    "ReadHealth",
    "ReadStatistics",
    "Reload",
    "RemovePrefix",
    "ScoreContinuations",
    "TokenBytes",
    "Tokenize",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreContinuations(CallOptions, Question[list[Score]]):
    """Score each continuation of the prompt.

    continuations: one or more. top_logprobs: likeliest tokens to report for each token.
    """

    prompt: Prompt
    continuations: Sequence[Prompt]
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedTexts(CallOptions, Question[list[Embedding]]):
    """Embed each text as one vector. pooling: "last", "mean", "cls"; None: the model's own.

    truncate: True cuts texts that are too long; a number cuts texts of more tokens.
    """

    texts: Sequence[Prompt]
    pooling: str | None = None
    truncate: bool | int = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPrefix(Question[PrefixInfo]):
    """Compute the KV of a prefix and keep it under a name. None generates a name.

    timeout: seconds until it must be computed; None is no limit.
    """

    prefix: Prompt
    name: str | None = None
    namespace: str | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePrefix(Question[None]):
    """Undo one `AddPrefix`."""

    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ListPrefixes(Question[Prefixes]):
    """List all prefixes that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenize(Question[tuple[int, ...]]):
    """Return the token ids of a prompt, or of messages if `chat` is set.

    add_special_tokens: False for a text alone, without special tokens and system prompt.
    """

    content: Prompt | Messages
    chat: ChatSettings | None = None
    add_special_tokens: bool = True

    @classmethod
    def of(cls, content: Prompt | Messages, options: Mapping[str, Any]) -> Tokenize:
        """Return the question of `AnyBatcher.tokenize`. Raises InvalidRequestError."""
        own = dict(options)
        wanted = REQUEST.flag("add_special_tokens", own.pop("add_special_tokens", True))
        chat = settings_of(content, own)
        if chat is not None and not wanted:
            raise InvalidRequestError(
                "add_special_tokens is False; a chat template writes its own",
                field="add_special_tokens",
            )
        return cls(content=content, chat=chat, add_special_tokens=wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenize(Question[str]):
    """Return the text of token ids."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeEach(Question[list[str]]):
    """Return the text of each list of token ids, all in one answer."""

    token_ids: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes(Question[list[bytes]]):
    """Return the bytes that each token adds to a text."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReadStatistics(Question[BatcherStatistics]):
    """Return the counts since the start."""


@dataclass(frozen=True, slots=True)
class ReadHealth(Question[Health]):
    """Return whether requests are served."""


@dataclass(frozen=True, slots=True)
class Describe(Question[dict[str, Any]]):
    """Return `version`, `model` and `limits` of the server."""


@dataclass(frozen=True, slots=True)
class DescribeModel(Question[ModelInfo]):
    """Describe the model that is served now."""


@dataclass(frozen=True, slots=True)
class Reload(Question[dict[str, Any]]):
    """Serve with other options from now on: `model`, `system_prompt` and options by name."""

    changes: Mapping[str, Any]

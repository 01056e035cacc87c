"""The kinds of questions: one frozen dataclass each, with fields that are not checked yet.

A new kind of question is a dataclass here, its codec in `sidecar/protocol/codecs.py`, its handler
in `serving/service.py`, and its methods in `calls/any_batcher.py` and `calls/threads/calls.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .call import CallOptions, Messages, Prompt, Question
from .chat_settings import ChatSettings
from .prefix_info import Prefixes, PrefixInfo
from .scores import Embedding, Score
from .statistics import BatcherStatistics, Health

__all__ = [
    "AddPrefix",
    "Describe",
    "Detokenize",
    "EmbedTexts",
    "ListPrefixes",
    "ReadHealth",
    "ReadStatistics",
    "Reload",
    "RemovePrefix",
    "ScoreContinuations",
    "Tokenize",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreContinuations(CallOptions, Question[list[Score]]):
    """Score each continuation of the prompt. continuations: one or more."""

    prompt: Prompt
    continuations: Sequence[Prompt]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedTexts(CallOptions, Question[list[Embedding]]):
    """Embed each text as one vector. pooling: "last" or "mean"."""

    texts: Sequence[Prompt]
    pooling: str = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPrefix(Question[PrefixInfo]):
    """Compute the KV of a prefix and keep it under a name. None: a name is made up."""

    prefix: Prompt
    name: str | None = None
    namespace: str | None = None


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
    """Return the token ids of a prompt, or of messages if it is a `chat`; None: it is none."""

    content: Prompt | Messages
    chat: ChatSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenize(Question[str]):
    """Return the text of token ids."""

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
class Reload(Question[dict[str, Any]]):
    """Serve with other options from now on: `model`, `system_prompt` and options, by name."""

    changes: Mapping[str, Any]

"""Everything that can be asked and has one answer: one frozen dataclass a kind, not checked yet.

A new kind of question is a dataclass here, its codec in `sidecar/protocol/codecs.py`, its handler
in `serving/service.py`, and its methods in `calls/any_batcher.py` and `threads/calls.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .call import CallOptions, Messages, Prompt, Question
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
    """How likely each continuation of the prompt is. Any number of them."""

    prompt: Prompt
    continuations: Sequence[Prompt]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedTexts(CallOptions, Question[list[Embedding]]):
    """Each text as one vector. pooling: "last" or "mean"."""

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
    """All prefixes that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenize(Question[tuple[int, ...]]):
    """The token ids of a prompt, or of messages if it `is_chat`."""

    content: Prompt | Messages
    is_chat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenize(Question[str]):
    """The text of token ids."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReadStatistics(Question[BatcherStatistics]):
    """Counts since the start."""


@dataclass(frozen=True, slots=True)
class ReadHealth(Question[Health]):
    """Whether requests are served."""


@dataclass(frozen=True, slots=True)
class Describe(Question[dict[str, Any]]):
    """`version`, `model` and `limits` of what serves."""


@dataclass(frozen=True, slots=True)
class Reload(Question[dict[str, Any]]):
    """Serve with other options from now on: `model`, `system_prompt` and options, by name."""

    changes: Mapping[str, Any]

"""The keywords of calls as `TypedDict`s, for completion in editors and for type checkers.

The asynchronous, the blocking and the threadsafe methods take the same keywords.
`AnyBatcher.generate` and `SamplingParams` document them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict

from ..params.unknown_names import unknown_argument
from ..scheduling import Pooling

__all__ = [
    "ActOptions",
    "ChatOptions",
    "CompleteOptions",
    "EmbedOptions",
    "GenerateOptions",
    "MapOptions",
    "PrefixOptions",
    "RequestOptions",
    "SamplingOptions",
    "ScoreOptions",
    "TemplateOptions",
    "ThinkingOptions",
    "TokenizeOptions",
    "TypedActOptions",
    "TypedChatOptions",
    "TypedCompleteOptions",
    "TypedGenerateOptions",
    "TypedMapOptions",
    "UntypedOptions",
    "check_known",
    "check_names",
]


class RequestOptions(TypedDict, total=False):
    """The keywords of every request: its priority, timeout in seconds, cache namespace, the tenant
    whose share of the engine it takes, and its trace.
    """

    priority: int
    timeout: float | None
    namespace: str | None
    tenant: str | None
    trace_headers: Mapping[str, str] | None


class UntypedOptions(TypedDict, total=False):
    """The fields of `SamplingParams` except `json_schema`, whose type is that of the result."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    logprobs: int | None
    skip_special_tokens: bool
    n: int
    regex: str | None
    grammar: str | None
    choices: Sequence[str] | None
    json_object: bool
    of_model: Sequence[str]


class SamplingOptions(UntypedOptions, total=False):
    """The fields of `SamplingParams`."""

    json_schema: Any


class ThinkingOptions(TypedDict, total=False):
    """The keywords of a chat that decide about its prompt, without its tools."""

    tool_choice: str | Mapping[str, Any] | None
    enable_thinking: bool | None
    reasoning_effort: str | None
    chat_template_kwargs: Mapping[str, Any] | None


class TemplateOptions(ThinkingOptions, total=False):
    """The keywords of a chat that decide about its prompt: with `tool_choice="none"` it has no
    tools.
    """

    tools: Sequence[Any] | None


class TokenizeOptions(TemplateOptions, total=False):
    """The keywords of `tokenize`."""

    add_special_tokens: bool


class TypedActOptions(RequestOptions, UntypedOptions, ThinkingOptions, total=False):
    """The keywords of `act` beside a type as `json_schema`."""

    parallel_tool_calls: bool
    max_reasoning_tokens: int | None


class ActOptions(TypedActOptions, SamplingOptions, total=False):
    """The keywords of `act`: those of `chat` without `tools`, which is an argument of its own."""


class TypedChatOptions(TypedActOptions, TemplateOptions, total=False):
    """The keywords of `chat` and `stream_chat` beside a type as `json_schema`."""


class ChatOptions(TypedChatOptions, SamplingOptions, total=False):
    """The keywords of `chat` and `stream_chat`."""


class TypedGenerateOptions(RequestOptions, UntypedOptions, total=False):
    """The keywords of `stream` beside a type as `json_schema`, including the output so far."""

    output: Sequence[int]


class GenerateOptions(TypedGenerateOptions, SamplingOptions, total=False):
    """The keywords of `stream`."""


class TypedCompleteOptions(TypedGenerateOptions, total=False):
    """The keywords of `generate` beside a type as `json_schema`."""

    prompt_logprobs: bool | int | None


class CompleteOptions(TypedCompleteOptions, SamplingOptions, total=False):
    """The keywords of `generate`: those of `stream`, and options whose results come only at the
    end.
    """


class TypedMapOptions(TypedChatOptions, TypedCompleteOptions, total=False):
    """The keywords of `map` beside a type as `json_schema`."""


class MapOptions(TypedMapOptions, SamplingOptions, total=False):
    """The keywords of `map`: those of `generate` and of `chat`, for items of either kind."""


class ScoreOptions(RequestOptions, total=False):
    """The keywords of `score`."""

    top_logprobs: int


class EmbedOptions(RequestOptions, total=False):
    """The keywords of `embed`."""

    pooling: Pooling | None
    truncate: bool | int


class PrefixOptions(TypedDict, total=False):
    """The keywords of `add_prefix`."""

    name: str | None
    namespace: str | None
    timeout: float | None


def check_names(options: Mapping[str, Any], kind: Any) -> None:
    """Raise InvalidRequestError for a keyword that `kind`, a `TypedDict`, does not have."""
    check_known(options, kind.__optional_keys__)


def check_known(options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise InvalidRequestError for a keyword that is not in `known`."""
    for name in options:
        if name not in known:
            raise unknown_argument(name, known, _OF_CALLS)


_OF_CALLS: Mapping[str, frozenset[str]] = {
    "generate": CompleteOptions.__optional_keys__,
    "chat": ChatOptions.__optional_keys__,
    "tokenize": TokenizeOptions.__optional_keys__,
    "score": ScoreOptions.__optional_keys__,
    "embed": EmbedOptions.__optional_keys__,
    "add_prefix": PrefixOptions.__optional_keys__,
}

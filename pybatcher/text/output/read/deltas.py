"""Deltas that a `ResponseParser` returns as text comes, and `ParsedResponse`, their sum."""

from __future__ import annotations

from dataclasses import dataclass

from ...tool_call import ToolCall

__all__ = [
    "ContentDelta",
    "Delta",
    "MarkupDelta",
    "ParsedResponse",
    "ReasoningDelta",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallEnded",
    "ToolCallRejected",
    "ToolCallStarted",
]


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More text of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class MarkupDelta:
    """Text that is no part of the message: markers, and blanks beside them."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A call has a name. `index` counts the calls that started, from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments. The pieces, joined, are the JSON text of an object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """A call is complete."""

    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolCallRejected:
    """Text that looked like a call but is none: it is content.

    index: index of the call that had started, which is void; None if no call had started.
    text: all of its text; it belongs to the content.
    note: the fault, in words.
    """

    index: int | None
    text: str
    note: str


Delta = (
    ContentDelta
    | ReasoningDelta
    | MarkupDelta
    | ToolCallStarted
    | ToolCallArguments
    | ToolCallEnded
    | ToolCallRejected
)


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A response in its parts.

    notes: faults of text that looked like a call and became content.
    """

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...] = ()
    notes: tuple[str, ...] = ()

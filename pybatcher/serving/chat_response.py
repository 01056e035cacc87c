"""`ChatResponse`: separates the text, the reasoning and the tool calls of a chat's output."""

from __future__ import annotations

from typing import NamedTuple

from ..text.output import (
    ContentDelta,
    ReasoningDelta,
    ResponseParser,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallRejected,
    ToolCallStarted,
)
from ..text.tool_call import ToolCall, ToolCallDelta

__all__ = ["ChatResponse", "ResponsePart"]


class ResponsePart(NamedTuple):
    """The part of a response that a piece of output text adds."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


_NOTHING = ResponsePart()


class ChatResponse:
    """Reads the text of one output as it comes.

    kept_ids: special tokens whose texts the parser needs.
    is_parallel: True if the response may have several calls; else it ends with the first call.
    """

    __slots__ = ("_is_parallel", "_notes", "_parser", "_tool_calls", "is_over", "kept_ids")

    def __init__(
        self, parser: ResponseParser, kept_ids: frozenset[int], *, is_parallel: bool
    ) -> None:
        self.kept_ids = kept_ids
        self.is_over = False
        self._parser = parser
        self._is_parallel = is_parallel
        self._tool_calls: list[ToolCall] = []
        self._notes: list[str] = []

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that are complete."""
        return tuple(self._tool_calls)

    @property
    def notes(self) -> tuple[str, ...]:
        """Faults of text that looked like a call."""
        return tuple(self._notes)

    def feed(self, text: str, *, is_last: bool) -> ResponsePart:
        """Read more text; return the parts that are certain now. is_last: no text follows."""
        if self.is_over:
            return _NOTHING
        deltas = self._parser.feed(text) if text else []
        if is_last:
            deltas += self._parser.finish()
        if not deltas:
            return _NOTHING
        content: list[str] = []
        reasoning: list[str] = []
        calls: list[ToolCallDelta] = []
        for delta in deltas:
            match delta:
                case ContentDelta(more):
                    content.append(more)
                case ReasoningDelta(more):
                    reasoning.append(more)
                case ToolCallStarted(index, call_id, name):
                    calls.append(ToolCallDelta(index, call_id, name))
                case ToolCallArguments(index, more):
                    calls.append(ToolCallDelta(index, arguments=more))
                case ToolCallEnded(index, call):
                    calls.append(ToolCallDelta(index, call=call))
                    self._tool_calls.append(call)
                    if not self._is_parallel:
                        self.is_over = True
                        break
                case ToolCallRejected(index, more, note):
                    content.append(more)
                    self._notes.append(note)
                    if index is not None:
                        calls.append(ToolCallDelta(index, note=note))
        return ResponsePart("".join(content), "".join(reasoning), tuple(calls))

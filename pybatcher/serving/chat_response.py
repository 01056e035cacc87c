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
_OF_CALLS = (ToolCallStarted, ToolCallArguments, ToolCallEnded, ToolCallRejected)
_LEFT_OUT = "it is a call, which tool_choice 'none' forbids; the text leaves it out"


class ChatResponse:
    """Reads the text of one output as it comes.

    kept_ids: special tokens whose texts the parser needs.
    is_parallel: True if the response may have several calls; else it ends with the first call.
    may_call: False leaves calls out of the response, with a note.
    """

    __slots__ = (
        "_is_parallel",
        "_may_call",
        "_notes",
        "_parser",
        "_tool_calls",
        "is_over",
        "kept_ids",
    )

    def __init__(
        self,
        parser: ResponseParser,
        kept_ids: frozenset[int],
        *,
        is_parallel: bool,
        may_call: bool = True,
    ) -> None:
        self.kept_ids = kept_ids
        self.is_over = False
        self._parser = parser
        self._is_parallel = is_parallel
        self._may_call = may_call
        self._tool_calls: list[ToolCall] = []
        self._notes: list[str] = []

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls so far; the last one has `is_cut` if the output was cut inside it."""
        return tuple(self._tool_calls)

    @property
    def may_be_run(self) -> bool:
        """True if there are calls, and all of them are complete."""
        return bool(self._tool_calls) and not self._tool_calls[-1].is_cut

    @property
    def notes(self) -> tuple[str, ...]:
        """Faults of text that looked like a call."""
        return tuple(self._notes)

    def feed(self, text: str, *, is_last: bool, is_cut: bool = False) -> ResponsePart:
        """Read more text; return the parts that are certain now.

        is_last: no text follows. is_cut: the model did not end the text itself.
        """
        if self.is_over:
            return _NOTHING
        deltas = self._parser.feed(text) if text else []
        if is_last:
            deltas += self._parser.finish(is_cut=is_cut)
        if not deltas:
            return _NOTHING
        content: list[str] = []
        reasoning: list[str] = []
        calls: list[ToolCallDelta] = []
        for delta in deltas:
            if not self._may_call and isinstance(delta, _OF_CALLS):
                if not isinstance(delta, (ToolCallStarted, ToolCallArguments)):
                    self._notes.append(_LEFT_OUT)
                continue
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
                    if not (self._is_parallel or call.is_cut):
                        self.is_over = True
                        break
                case ToolCallRejected(index, more, note):
                    content.append(more)
                    self._notes.append(note)
                    if index is not None:
                        calls.append(ToolCallDelta(index, note=note))
        return ResponsePart("".join(content), "".join(reasoning), tuple(calls))

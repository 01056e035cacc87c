"""`DeltaWriter`: collects the deltas of one feed, and the response that they add up to."""

from __future__ import annotations

from collections.abc import Callable

from .deltas import (
    ContentDelta,
    Delta,
    MarkupDelta,
    ParsedResponse,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallRejected,
    ToolCallStarted,
)

__all__ = ["DeltaWriter"]

_MAX_NOTES = 32

_Text = type[ContentDelta] | type[ReasoningDelta] | type[MarkupDelta] | type[ToolCallArguments]


class DeltaWriter:
    """Collects the parser's results, in order. Pieces of one text become one delta.

    call_id: returns the id of a call by its index.
    """

    def __init__(self, call_id: Callable[[int], str]) -> None:
        self._call_id = call_id
        self._started = 0
        self._deltas: list[Delta] = []
        self._kind: _Text | None = None
        self._parts: list[str] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._notes: list[str] = []

    @property
    def has_content(self) -> bool:
        """True when there is text of the answer."""
        return bool(self._content)

    @property
    def has_calls(self) -> bool:
        """True when a call is complete."""
        return bool(self._calls)

    def content(self, text: str) -> None:
        """Add text of the answer."""
        if not text:
            return
        self._content.append(text)
        self._text(ContentDelta, text)

    def reasoning(self, text: str) -> None:
        """Add text of the reasoning."""
        self._reasoning.append(text)
        self._text(ReasoningDelta, text)

    def markup(self, text: str) -> None:
        """Add text that is no part of the message."""
        self._text(MarkupDelta, text)

    def start_call(self, name: str) -> tuple[int, str]:
        """Add the start of a call; return its index and its id."""
        index = self._started
        self._started += 1
        call_id = self._call_id(index)
        self._add(ToolCallStarted(index, call_id, name))
        return index, call_id

    def arguments(self, text: str) -> None:
        """Add text of the arguments of the call that started last."""
        self._text(ToolCallArguments, text)

    def end_call(self, index: int, call: ToolCall) -> None:
        """Add the end of a call."""
        self._calls.append(call)
        self._add(ToolCallEnded(index, call))

    def reject(self, index: int | None, text: str, note: str) -> None:
        """Add text that looked like a call and is content."""
        if text:
            self._content.append(text)
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(note)
        self._add(ToolCallRejected(index, text, note))

    def drain(self) -> list[Delta]:
        """Return the deltas since the last call."""
        self._flush()
        deltas, self._deltas = self._deltas, []
        return deltas

    def response(self) -> ParsedResponse:
        """Return the response so far."""
        return ParsedResponse(
            "".join(self._content),
            "".join(self._reasoning),
            tuple(self._calls),
            tuple(self._notes),
        )

    def _text(self, kind: _Text, text: str) -> None:
        if not text:
            return
        if self._kind is not kind:
            self._flush()
            self._kind = kind
        self._parts.append(text)

    def _add(self, delta: Delta) -> None:
        self._flush()
        self._deltas.append(delta)

    def _flush(self) -> None:
        kind, text = self._kind, "".join(self._parts)
        self._kind, self._parts = None, []
        if kind is None:
            return
        if kind is ToolCallArguments:
            self._deltas.append(ToolCallArguments(self._started - 1, text))
        else:
            self._deltas.append(kind(text))  # type: ignore[call-arg, arg-type]

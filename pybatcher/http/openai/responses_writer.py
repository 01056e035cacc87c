"""`ResponseWriter`: writes the pieces of an output as items of a response and as events.

A response is a list of items: reasoning, messages and function calls. One item is open at a time.
    Each item has an event at its beginning and at its end, and its text is sent in deltas between
    them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...calls.completion import Completion, Piece, TokenLogprob, Usage
from ...text.tool_call import ToolCallDelta
from ..base.http_error import HttpError
from ..base.token_texts import TokenTexts
from .responses_items import CallItem, MessageItem, OpenItem, ReasoningItem

__all__ = ["ResponseWriter"]

_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponseWriter:
    """Takes the pieces of one output in order; returns events, and the response so far. Pure.

    head: the fields of the response from its beginning; its "id" begins with "resp_".
    texts: the texts of all tokens in the log-probabilities of the pieces.
    """

    def __init__(self, head: Mapping[str, Any], texts: TokenTexts) -> None:
        self._head = dict(head)
        self._texts = texts
        self._events: list[dict[str, Any]] = []
        self._n_events = 0
        self._output: list[dict[str, Any]] = []
        self._n_items = 0
        self._open: OpenItem | None = None
        self._held: list[TokenLogprob] = []  # tokens whose text has not arrived yet
        self._reasoning_tokens = 0

    def begin(self) -> list[dict[str, Any]]:
        """Return the events before the first item."""
        for name in ("created", "in_progress"):
            self._tell(f"response.{name}", response=self._response("in_progress"))
        return self._take()

    def add(self, pieces: Iterable[Piece]) -> list[dict[str, Any]]:
        """Return the events for pieces that arrived together: one delta for each item."""
        for piece in pieces:
            self._add(piece)
        self._flush()
        return self._take()

    def end(self, made: Completion, at: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the response, and its last events. at: the Unix time in seconds."""
        is_cut = made.finish_reason in ("length", "deadline")
        status = "incomplete" if is_cut else "completed"
        self._close(status)
        if not self._output:
            self._begin(MessageItem)
            self._close(status)
        more: dict[str, Any] = {"usage": self._usage(made.usage)}
        if is_cut:
            more["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            more["completed_at"] = at
        response = self._response(status, **more)
        self._tell(f"response.{status}", response=response)
        return response, self._take()

    def fail(self, error: HttpError) -> list[dict[str, Any]]:
        """Return the last events of a response that fails after its beginning."""
        self._close("incomplete")
        told = {"code": _CODES.get(error.status, "server_error"), "message": error.message}
        self._tell("response.failed", response=self._response("failed", error=told))
        return self._take()

    def _add(self, piece: Piece) -> None:
        calls = list(piece.tool_calls)
        while calls and isinstance(self._open, CallItem) and self._open.number == calls[0].index:
            self._call(calls.pop(0))
        is_message = isinstance(self._open, MessageItem)
        # The end of the message, if the same token begins another item.
        if is_message and piece.text:
            self._text(piece)
        if piece.reasoning:
            self._open_as(ReasoningItem).add(piece.reasoning)
        if piece.text and not is_message:
            self._text(piece)
        for delta in calls:
            self._call(delta)
        if piece.reasoning or (
            isinstance(self._open, ReasoningItem) and not (piece.text or piece.tool_calls)
        ):
            self._reasoning_tokens += len(piece.token_ids)
        if piece.text or piece.reasoning or piece.tool_calls:
            self._held = []
        elif isinstance(self._open, (MessageItem, type(None))):
            self._held += piece.logprobs or ()

    def _text(self, piece: Piece) -> None:
        drawn = (*self._held, *(piece.logprobs or ()))
        logprobs = [self._texts.described(one) for one in drawn if not one.is_end]
        self._open_as(MessageItem).add(piece.text, logprobs)

    def _call(self, delta: ToolCallDelta) -> None:
        if delta.name:
            self._begin(CallItem, number=delta.index, call_id=delta.id, name=delta.name)
        item = self._open
        if not isinstance(item, CallItem) or item.number != delta.index:
            return
        item.add(delta.arguments)
        if delta.call is not None:
            if not item.text:
                item.add(delta.call.json_arguments)
            self._close("incomplete" if delta.call.is_cut else "completed", is_call=True)
        elif delta.note:
            self._close("incomplete")

    def _open_as(self, kind: type[OpenItem]) -> OpenItem:
        """Return the open item. Opens a new one if the open item is of another kind."""
        if type(self._open) is not kind:
            self._begin(kind)
        assert self._open is not None
        return self._open

    def _begin(self, kind: type[OpenItem], **fields: Any) -> None:
        self._close("completed")
        item = kind(self._head["id"].removeprefix("resp_"), self._n_items, **fields)
        self._n_items += 1
        self._open = item
        self._tell_all(item.begun())

    def _close(self, status: str, *, is_call: bool = False) -> None:
        """End the open item. Without `is_call`, a call was none, and the output leaves it out."""
        item = self._open
        if item is None:
            return
        self._flush()
        if isinstance(item, CallItem) and not is_call:
            self._tell_all(item.void())
        else:
            self._tell_all(item.done(status))
            self._output.append(item.body(status))
        self._open = None

    def _flush(self) -> None:
        if self._open is not None:
            self._tell_all(self._open.fresh())

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        return {
            "id": self._head["id"],
            "object": "response",
            "status": status,
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "completed_at": None,
            **self._head,
            **more,
            "output": list(self._output),
        }

    def _usage(self, usage: Usage) -> dict[str, Any]:
        details = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0}
        if usage.image_tokens:
            details["image_tokens"] = usage.image_tokens
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": details,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _tell_all(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            self._tell(**event)

    def _tell(self, type: str, **fields: Any) -> None:
        self._events.append({"type": type, "sequence_number": self._n_events, **fields})
        self._n_events += 1

    def _take(self) -> list[dict[str, Any]]:
        events, self._events = self._events, []
        return events

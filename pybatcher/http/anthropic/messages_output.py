"""Writes answers of Anthropic's Messages API, as bodies and as stream events. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ...calls.completion import Completion, Piece, Usage
from ...text.tool_call import ToolCall, ToolCallDelta
from ..base.event_stream import event

__all__ = ["PING", "MessageEvents", "message_body", "stop_text_of"]

_SIGNATURE = "pybatcher"  # clients do not send back thinking without a signature
PING = event({"type": "ping"}, "ping")


def message_body(
    made: Completion, *, id: str, model: str, most: int, stop_text: str | None
) -> dict[str, Any]:
    """Return the body of a response.

    most: the limit on tokens in the request. stop_text: the stop sequence that ended the output.
        None: no stop sequence did.
    """
    content: list[dict[str, Any]] = []
    if made.reasoning:
        content.append({"type": "thinking", "thinking": made.reasoning, "signature": _SIGNATURE})
    if made.text:
        content.append({"type": "text", "text": made.text})
    content += [_tool_use(call.id, call.name, call.arguments) for call in made.tool_calls]
    return {
        **_head(id, model),
        "content": content,
        **_stop(made, most, stop_text),
        "usage": _usage(made.usage),
    }


def stop_text_of(text: str, stops: Sequence[str]) -> str | None:
    """Return the stop sequence that ended an output. None: no stop sequence is in the text.

    If several end at the same place, the longest counts. text: the text of all tokens of the
    output, including special tokens. No token follows a stop sequence, so a stop sequence in the
    text has ended the output.
    """
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    return min(found)[2] if found else None


class MessageEvents:
    """Makes the events of a stream from the pieces of each step. One block is open at a time.

    The input of a tool is sent when its call has ended, because a call can turn out to be no call.
    If `max_tokens` cut it, the input has its complete part, and the stop reason tells it. A step
    without an event to send becomes a ping.

    prompt_tokens: all tokens of the prompt; the last event has the number of cached ones.
    eager: the tools whose input is sent as it arrives.
    """

    def __init__(
        self, *, id: str, model: str, prompt_tokens: int, eager: Collection[str] = ()
    ) -> None:
        head = {**_head(id, model), "content": [], "stop_reason": None, "stop_sequence": None}
        head["usage"] = _usage(Usage(prompt_tokens, 0, 0))
        self.opening = event({"type": "message_start", "message": head}, "message_start")
        """The first event, which comes before those of the first step."""
        self._events: list[bytes] = []
        self._eager = eager
        self._held: dict[int, tuple[str, str]] = {}  # id and name by the call's index
        self._block = -1
        self._open = ""
        self._more: list[str] = []

    def step(self, pieces: Iterable[Piece]) -> bytes:
        """Return the events for the pieces of one step: at least one event."""
        for piece in pieces:
            self._add("thinking", piece.reasoning)
            self._add("text", piece.text)
            for delta in piece.tool_calls:
                self._call(delta)
        self._flush()
        return self._taken() or PING

    def end(self, made: Completion, *, most: int, stop_text: str | None) -> bytes:
        """Return the last events. The arguments are those of `message_body`."""
        self._close()
        delta = {"type": "message_delta", "delta": _stop(made, most, stop_text)}
        self._events.append(event({**delta, "usage": _usage(made.usage)}, "message_delta"))
        self._events.append(event({"type": "message_stop"}, "message_stop"))
        return self._taken()

    def _taken(self) -> bytes:
        events, self._events = b"".join(self._events), []
        return events

    def _call(self, delta: ToolCallDelta) -> None:
        if delta.name and delta.name in self._eager:
            self._begin("tool_use", _tool_use(delta.id, delta.name, {}))
        elif delta.name:
            self._held[delta.index] = (delta.id, delta.name)
        held = delta.index in self._held
        if not held and self._open == "tool_use":
            self._add("tool_use", delta.arguments)
        if delta.note:
            self._held.pop(delta.index, None)
        if delta.call is not None:
            if held:
                del self._held[delta.index]
                self._whole(delta.call)
            self._close()

    def _whole(self, call: ToolCall) -> None:
        self._begin("tool_use", _tool_use(call.id, call.name, {}))
        self._add("tool_use", json.dumps(call.arguments, ensure_ascii=False))

    def _add(self, kind: str, text: str) -> None:
        """Add text to the open block. Opens a new block if the open one is of another kind."""
        if not text:
            return
        if self._open != kind:
            empty = {"thinking": "", "signature": ""} if kind == "thinking" else {"text": ""}
            self._begin(kind, {"type": kind, **empty})
        self._more.append(text)

    def _begin(self, kind: str, block: dict[str, Any]) -> None:
        self._close()
        self._block, self._open = self._block + 1, kind
        self._tell("content_block_start", content_block=block)

    def _close(self) -> None:
        """End the open block, if there is one."""
        self._flush()
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": _SIGNATURE}
            self._tell("content_block_delta", delta=delta)
        if self._open:
            self._tell("content_block_stop")
        self._open = ""

    def _flush(self) -> None:
        if self._more:
            kind, name = _DELTAS[self._open]
            delta = {"type": kind, name: "".join(self._more)}
            self._tell("content_block_delta", delta=delta)
            self._more.clear()

    def _tell(self, kind: str, **values: Any) -> None:
        self._events.append(event({"type": kind, "index": self._block, **values}, kind))


_DELTAS = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""The type of a delta and the key of its text, by the type of the block."""


def _head(id: str, model: str) -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "model": model}


def _tool_use(id: str, name: str, input: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def _stop(made: Completion, most: int, stop_text: str | None) -> dict[str, Any]:
    match made.finish_reason:
        case "tool_calls":
            reason, stop_text = "tool_use", None
        case "stop":
            reason = "end_turn" if stop_text is None else "stop_sequence"
        case "length" if made.usage.completion_tokens < most:
            reason, stop_text = "model_context_window_exceeded", None
        case _:
            reason, stop_text = "max_tokens", None
    return {"stop_reason": reason, "stop_sequence": stop_text}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }

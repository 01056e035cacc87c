"""Codecs of tool calls, whole and in deltas. `wire_results` documents their shapes.

Arguments cross the wire as a JSON text in ASCII: MessagePack has no numbers of more than 64 bits
    and no lone surrogates, and a model may write both.
"""

from __future__ import annotations

import json
from typing import Any

from ...errors import ProtocolError
from ...text.tool_call import ToolCall, ToolCallDelta
from .wire_fields import ANSWERED

__all__ = ["call_delta_to_wire", "call_deltas_from_wire", "call_to_wire", "calls_from_wire"]


_TEXTS = ("id", "name", "arguments", "note")


def call_to_wire(call: ToolCall) -> dict[str, Any]:
    """Return the map of a call."""
    wire: dict[str, Any] = {
        "id": call.id,
        "name": call.name,
        "arguments": json.dumps(call.arguments),
        "raw": _valid(call.raw),
    }
    if call.arguments_text:
        wire["text"] = _valid(call.arguments_text)
    if call.is_cut:
        wire["is_cut"] = True
    return wire


def calls_from_wire(wire: object) -> tuple[ToolCall, ...]:
    """Return the calls of a completion. Raises ProtocolError."""
    items = ANSWERED.items(wire, "tool_calls")
    return tuple(_call(one, f"tool_calls[{i}]") for i, one in enumerate(items))


def call_delta_to_wire(delta: ToolCallDelta) -> dict[str, Any]:
    """Return the map of a piece's addition to a call."""
    wire: dict[str, Any] = {"index": delta.index}
    if delta.name:
        wire |= {"id": delta.id, "name": delta.name}
    if delta.arguments:
        wire["arguments"] = _valid(delta.arguments)
    if delta.call is not None:
        wire["call"] = call_to_wire(delta.call)
    if delta.note:
        wire["note"] = _valid(delta.note)
    return wire


def call_deltas_from_wire(wire: object) -> tuple[ToolCallDelta, ...]:
    """Return the additions of a piece to calls. Raises ProtocolError."""
    made = []
    for i, one in enumerate(ANSWERED.items(wire, "tool_calls")):
        name = f"tool_calls[{i}]"
        said = ANSWERED.map(one, name)
        call = said.get("call")
        texts = {key: ANSWERED.text(said.get(key, ""), f"{name}.{key}") for key in _TEXTS}
        index = ANSWERED.whole(said.get("index"), f"{name}.index")
        whole = None if call is None else _call(call, f"{name}.call")
        made.append(ToolCallDelta(index, call=whole, **texts))
    return tuple(made)


def _call(wire: object, name: str) -> ToolCall:
    said = ANSWERED.map(wire, name)
    id, tool, text, raw = (
        ANSWERED.text(said.get(key), f"{name}.{key}") for key in ("id", "name", "arguments", "raw")
    )
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{name}.arguments is no JSON: {error}") from error
    written = ANSWERED.text(said.get("text", ""), f"{name}.text")
    is_cut = ANSWERED.flag(said.get("is_cut", False), f"{name}.is_cut")
    made = ANSWERED.map(arguments, f"{name}.arguments")
    return ToolCall(id, tool, made, raw, written, is_cut=is_cut)


def _valid(text: str) -> str:
    """Return a text that UTF-8 can encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from wire_values import ANYTHING, TOOL_CALL_DELTAS, TOOL_CALLS

from pybatcher.errors import ProtocolError
from pybatcher.sidecar.protocol.wire_tool_calls import (
    call_delta_to_wire,
    call_deltas_from_wire,
    call_to_wire,
    calls_from_wire,
)
from pybatcher.text.tool_call import ToolCall, ToolCallDelta


def over_the_wire(value: Any) -> Any:
    return msgpack.unpackb(msgpack.packb(value))


@pytest.mark.slow
@given(TOOL_CALLS)
def test_a_call_comes_as_it_was_sent(call: ToolCall) -> None:
    assert calls_from_wire(over_the_wire([call_to_wire(call)])) == (call,)


@given(TOOL_CALL_DELTAS)
def test_a_delta_comes_as_it_was_sent(delta: ToolCallDelta) -> None:
    assert call_deltas_from_wire(over_the_wire([call_delta_to_wire(delta)])) == (delta,)


def test_arguments_that_messagepack_cannot_say() -> None:
    arguments = {"large": 10**40, "odd": "\ud800", "none": None}
    call = ToolCall("call_0", "f", arguments, "raw \ud800")
    (come,) = calls_from_wire(over_the_wire([call_to_wire(call)]))
    assert come.arguments == arguments
    assert come.raw == "raw ?"
    delta = ToolCallDelta(0, arguments="\ud800", note="\udfff")
    (come_delta,) = call_deltas_from_wire(over_the_wire([call_delta_to_wire(delta)]))
    assert (come_delta.arguments, come_delta.note) == ("?", "?")


@given(ANYTHING)
def test_anything_else_is_an_error_of_the_protocol(value: Any) -> None:
    for read in (calls_from_wire, call_deltas_from_wire):
        for wire in (value, [value], [{"index": 0, "call": value}]):
            with suppress(ProtocolError):
                read(wire)


@pytest.mark.parametrize("text", ["[", "[]", "5", "[" * 100_000])
def test_arguments_that_are_no_object(text: str) -> None:
    wire = {"id": "a", "name": "b", "arguments": text, "raw": ""}
    with pytest.raises(ProtocolError, match=r"tool_calls\[0\]\.arguments is"):
        calls_from_wire([wire])

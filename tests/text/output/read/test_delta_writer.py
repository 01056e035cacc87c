from __future__ import annotations

from pybatcher.text.output.read.delta_writer import DeltaWriter
from pybatcher.text.output.read.deltas import (
    ContentDelta,
    MarkupDelta,
    ParsedResponse,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallRejected,
    ToolCallStarted,
)


def test_deltas_come_in_order_and_pieces_of_one_text_together() -> None:
    writer = DeltaWriter(lambda index: f"id{index}")
    assert not writer.has_content
    writer.reasoning("a")
    writer.reasoning("")
    writer.markup("</think>")
    writer.content("b")
    writer.content("c")
    assert writer.has_content
    assert writer.start_call("f") == (0, "id0")
    writer.arguments("{")
    writer.arguments("}")
    call = ToolCall("id0", "f", {}, "raw")
    writer.end_call(0, call)
    writer.start_call("g")
    writer.reject(1, "g(", "cut")
    assert writer.drain() == [
        ReasoningDelta("a"),
        MarkupDelta("</think>"),
        ContentDelta("bc"),
        ToolCallStarted(0, "id0", "f"),
        ToolCallArguments(0, "{}"),
        ToolCallEnded(0, call),
        ToolCallStarted(1, "id1", "g"),
        ToolCallRejected(1, "g(", "cut"),
    ]
    assert writer.drain() == []
    assert writer.response() == ParsedResponse("bcg(", "a", (call,), ("cut",))


def test_notes_are_bounded() -> None:
    writer = DeltaWriter(str)
    for i in range(1000):
        writer.reject(None, "", str(i))
    assert len(writer.response().notes) == 32

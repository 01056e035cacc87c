from __future__ import annotations

import re

import pytest

from pybatcher.text.output.read.call_builder import CallBuilder, call_id
from pybatcher.text.output.read.delta_writer import DeltaWriter
from pybatcher.text.output.read.deltas import ToolCallArguments, ToolCallEnded, ToolCallStarted
from pybatcher.text.output.read.source import MalformedCallError


def builder(exact: bool = False) -> tuple[CallBuilder, DeltaWriter]:
    writer = DeltaWriter(str)
    return CallBuilder(writer, {"f": {"type": "object"}}, exact=exact), writer


def test_arguments_before_the_name_are_held() -> None:
    call, writer = builder()
    call.begin_arguments()
    call.add_text('{"a":')
    assert writer.drain() == []
    call.set_name("f")
    call.add_text("1}")
    assert writer.drain() == [ToolCallStarted(0, "0", "f"), ToolCallArguments(0, '{"a":1}')]
    call.end(lambda: "raw")
    (ended,) = writer.drain()
    assert isinstance(ended, ToolCallEnded)
    assert (ended.call.arguments, ended.call.raw) == ({"a": 1}, "raw")
    assert call.schema == {"type": "object"}


def test_arguments_one_by_one_are_an_object() -> None:
    call, writer = builder()
    call.set_name("f")
    call.begin_arguments()
    call.add_argument("a", "é")
    call.add_argument("b", [1])
    call.end_arguments()
    call.end(str)
    assert writer.drain()[1] == ToolCallArguments(0, '{"a": "é", "b": [1]}')
    for key in ("a", ""):
        with pytest.raises(MalformedCallError):
            call.add_argument(key, 1)


def test_an_exact_call_starts_with_its_arguments() -> None:
    call, writer = builder(exact=True)
    with pytest.raises(MalformedCallError, match="no tool of the request"):
        call.set_name("g")
    call.set_name("f")
    assert writer.drain() == []
    with pytest.raises(MalformedCallError, match="no arguments"):
        call.end(str)
    call.begin_arguments()
    assert writer.drain() == [ToolCallStarted(0, "0", "f")]


def test_a_call_has_one_name_and_arguments_once() -> None:
    call, _ = builder()
    with pytest.raises(MalformedCallError, match="no name"):
        call.end(str)
    for name in ("", "a b", "x" * 129, "é"):
        with pytest.raises(MalformedCallError, match="name that no tool"):
            call.set_name(name)
    call.set_name("not.of:the/request-")
    assert call.schema == {}
    with pytest.raises(MalformedCallError, match="two names"):
        call.set_name("f")
    call.begin_arguments()
    with pytest.raises(MalformedCallError, match="twice"):
        call.begin_arguments()


def test_ids_are_the_prefix_and_the_index() -> None:
    assert call_id("prefixed", "call_", 3) == "call_3"


def test_ids_of_mistral_are_nine_letters_and_digits() -> None:
    ids = [call_id("mistral", prefix, i) for prefix in ("a", "b", "\ud800") for i in range(50)]
    assert all(re.fullmatch("[0-9A-Za-z]{9}", one) for one in ids)
    assert len(set(ids)) == len(ids)
    assert call_id("mistral", "call_", 0) == call_id("mistral", "call_", 0) == "mupIKT56D"

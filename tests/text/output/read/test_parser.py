from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterable
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from response_texts import CASES, Case, fed, joined, parser_of, whole_text

from pybatcher.text.output.formats.formats import FORMATS
from pybatcher.text.output.read.deltas import (
    ContentDelta,
    Delta,
    ParsedResponse,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallRejected,
    ToolCallStarted,
)
from pybatcher.text.output.read.parser import ResponseParser, TrimmedText, parse_response
from pybatcher.text.output.read.source import MAX_CALL_CHARACTERS, TextSource

by_case = pytest.mark.parametrize(
    "case", CASES, ids=[f"{i}-{case.format}" for i, case in enumerate(CASES)]
)


def pieces_at(text: str, cuts: Iterable[int]) -> list[str]:
    return [text[a:b] for a, b in pairwise([0, *sorted(cuts), len(text)])]


def check_deltas(parser: ResponseParser, deltas: list[Delta], text: str) -> None:
    """Check that deltas say what the response says, and lose nothing."""
    response = parser.response()
    assert whole_text(deltas) == text
    content = [d.text for d in deltas if isinstance(d, (ContentDelta, ToolCallRejected))]
    assert "".join(content) == response.content
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == response.reasoning
    ended = {d.index: d.call for d in deltas if isinstance(d, ToolCallEnded)}
    assert tuple(ended.values()) == response.tool_calls
    started = {d.index: d for d in deltas if isinstance(d, ToolCallStarted)}
    rejected = {d.index for d in deltas if isinstance(d, ToolCallRejected)}
    assert list(started) == list(range(len(started)))
    assert set(started) - set(ended) == rejected - {None}
    for index, call in ended.items():
        texts = [d.text for d in deltas if isinstance(d, ToolCallArguments) and d.index == index]
        assert json.loads("".join(texts)) == call.arguments
        assert (started[index].id, started[index].name) == (call.id, call.name)


@by_case
def test_finds_the_parts(case: Case) -> None:
    parser = parser_of(case)
    check_deltas(parser, fed(parser, [case.text]), case.text)
    response = parser.response()
    assert response.content == case.content
    assert response.reasoning == case.reasoning
    assert [(call.name, call.arguments) for call in response.tool_calls] == list(case.calls)
    assert not case.calls or len({call.id for call in response.tool_calls}) == len(case.calls)


@by_case
def test_any_cut_gives_what_the_whole_text_gives(case: Case) -> None:
    whole = joined(fed(parser_of(case), [case.text]))
    for cut in range(1, len(case.text)):
        assert joined(fed(parser_of(case), pieces_at(case.text, [cut]))) == whole, cut
    assert joined(fed(parser_of(case), list(case.text))) == whole
    random_cuts = random.Random(case.text)
    for _ in range(10):
        cuts = [random_cuts.randint(0, len(case.text)) for _ in range(8)]
        assert joined(fed(parser_of(case), pieces_at(case.text, cuts))) == whole, cuts


@by_case
def test_a_text_that_ends_anywhere_loses_nothing(case: Case) -> None:
    for end in range(len(case.text)):
        parser = parser_of(case)
        check_deltas(parser, fed(parser, [case.text[:end]]), case.text[:end])


WORDS = [
    *sorted({marker for one in FORMATS.values() for marker in one.markers}),
    '{"name": "f", "arguments": ',
    '{"a": 1}',
    '{"type": "function", "function": ',
    "function",
    "call:f{a:",
    "<function=f>",
    "<parameter=a>",
    "</parameter>",
    "</function>",
    "f(a=",
    "to=functions.f",
    "assistant",
    '"',
    "'",
    *"[]{}(),;:=\\<>|` \n0-f",
]


texts = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), max_size=20).map("".join)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(sorted(FORMATS)), texts, st.booleans(), st.data())
def test_any_text_is_read_and_kept(
    name: str, text: str, in_reasoning: bool, data: st.DataObject
) -> None:
    schemas = data.draw(st.sampled_from([None, {}, {"f": {"properties": {"a": {}}}}]))
    options: dict[str, Any] = {"schemas": schemas, "in_reasoning": in_reasoning}
    whole = ResponseParser(FORMATS[name], **options)
    deltas = fed(whole, [text])
    check_deltas(whole, deltas, text)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    for pieces in (pieces_at(text, cuts), list(text)):
        parser = ResponseParser(FORMATS[name], **options)
        assert joined(fed(parser, pieces)) == joined(deltas)
        assert parser.response() == whole.response()
    if schemas == {}:
        assert not whole.response().tool_calls


@settings(deadline=None)
@given(texts)
def test_text_without_calls_or_reasoning_in_it_stays_as_it_is(text: str) -> None:
    parser = ResponseParser(FORMATS["harmony"], schemas={})
    plain = text.replace("<", "").replace("to=", "")
    assert fed(parser, [plain]) in ([ContentDelta(plain)], [])


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"harmony"}))
def test_a_marker_is_held_back_only_while_it_can_become_one(name: str) -> None:
    markers = [text for syntax in FORMATS[name].calls for text in syntax.opens]
    for marker in markers:
        parser = ResponseParser(FORMATS[name])
        assert parser.feed("x") == [ContentDelta("x")]
        for character in marker[:-1]:
            assert parser.feed(character) == []
        held = parser.feed("\x00")
        assert joined(held) == [ContentDelta(marker[:-1] + "\x00")]


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = ResponseParser(FORMATS["hermes"])
    assert parser.feed('<tool_call>{"name": "f", ') == [ToolCallStarted(0, "call_0", "f")]
    assert parser.feed('"arguments": {"a": "lo') == [ToolCallArguments(0, '{"a": "lo')]
    assert parser.feed("ng") == [ToolCallArguments(0, "ng")]
    assert parser.feed('"}') == [ToolCallArguments(0, '"}')]
    (ended,) = parser.feed("}")
    assert isinstance(ended, ToolCallEnded)
    assert ended.call.arguments == {"a": "long"}


def test_a_call_that_started_and_breaks_is_void() -> None:
    parser = ResponseParser(FORMATS["hermes"])
    text = '<tool_call>{"name": "f", "arguments": {"a": 01}}'
    deltas = parser.feed(text)
    rejected = next(delta for delta in deltas if isinstance(delta, ToolCallRejected))
    assert rejected.index == 0
    assert "number" in rejected.note
    parser.finish()
    assert parser.response().content == text
    assert parser.response().notes == (rejected.note,)
    assert parser.response().tool_calls == ()


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": "\\ud800"}',
        '{"a": ' + "[" * 100 + "]" * 100 + "}",
        '{"a": NaN}',
        '{"a": "line\nline"}',
        '{"a": "\\x"}',
        '{"a": "\\u12g4"}',
        "{'a': 1}",
        '{"a": 1,}',
        "[1]",
        "7",
        '"[1]"',
    ],
)
def test_arguments_without_a_plain_value_are_no_arguments(arguments: str) -> None:
    text = '<tool_call>{"name": "f", "arguments": ' + arguments + "}</tool_call>"
    response = parse_response(text, FORMATS["hermes"])
    assert response.content == text
    assert response.tool_calls == ()


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("3e+832", sys.float_info.max),
        ("-3E832", -sys.float_info.max),
        ("9" * 5000, sys.float_info.max),
        ("-" + "9" * 1234, -sys.float_info.max),
        ("1" + "0" * 600, 10**600),
        ("3e-832", 0.0),
    ],
)
def test_a_number_beyond_a_double_is_a_number(number: str, value: float) -> None:
    arguments = f'{{"a": [{number}]}}'
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    (call,) = parse_response(text, FORMATS["hermes"]).tool_calls
    assert (call.arguments, call.arguments_text) == ({"a": [value]}, arguments)


def without_notes(cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if not parse_case(case).notes]


def parse_case(case: Case) -> ParsedResponse:
    return parse_response(case.text, FORMATS[case.format], in_reasoning=case.in_reasoning)


def is_beginning(content: str, whole: str, case: Case) -> bool:
    """True if a content has no markup. Without calls, and in harmony, one character is no marker;
    the beginning of JSON before its first key is no call, where nothing opens one.
    """
    if content.rstrip().startswith(("{", "[", "```json")) and case.calls:
        return content.rstrip() in ("{", '{"', "[", "```json", "```json\n{", '```json\n{"')
    if case.format == "harmony" or not case.calls:
        content = re.sub(r"[<\[t]$", "", content)
    return whole.strip().startswith(content.strip())


@pytest.mark.parametrize("case", without_notes(CASES), ids=lambda case: case.text[:30])
def test_a_response_that_is_cut_anywhere_has_no_markup(case: Case) -> None:
    """The calls grow, and a call counts as soon as its name is complete."""
    schemas: dict[str, dict[str, Any]] = {name: {} for name, _ in case.calls}
    whole = parser_of(case, schemas=schemas)
    fed(whole, [case.text])
    expected = whole.response()
    n_calls = 0
    for end in range(len(case.text) + 1):
        text = case.text[:end]
        parser = parser_of(case, schemas=schemas)
        deltas = [*parser.feed(text), *parser.finish(is_cut=True)]
        assert whole_text(deltas) == text
        found = parser.response()
        assert is_beginning(found.content, expected.content, case), text
        assert is_beginning(found.reasoning, expected.reasoning, case), text
        assert found.notes == ()
        for call, full in zip(found.tool_calls, expected.tool_calls, strict=False):
            assert (call.id, call.name) == (full.id, full.name)
            assert full.arguments_text.startswith(call.arguments_text)
            assert set(call.arguments) <= set(full.arguments)
            assert call.is_cut or call == full
        assert not any(call.is_cut for call in found.tool_calls[:-1])
        assert n_calls <= len(found.tool_calls) <= len(expected.tool_calls)
        n_calls = len(found.tool_calls)
        told = [d.text for d in deltas if isinstance(d, ToolCallArguments)]
        assert "".join(told) == "".join(call.arguments_text for call in found.tool_calls)
        one_by_one = parser_of(case, schemas=schemas)
        pieces = [delta for letter in text for delta in one_by_one.feed(letter)]
        assert joined([*pieces, *one_by_one.finish(is_cut=True)]) == joined(deltas)
    assert not any(call.is_cut for call in found.tool_calls)


@pytest.mark.parametrize("text", ["{", '{"', '{"na', "[", '[{"name": "f', " {"])
@pytest.mark.parametrize("name", ["llama3", "gemma3", "generic"])
def test_a_response_of_calls_alone_has_no_content(name: str, text: str) -> None:
    parser = ResponseParser(FORMATS[name], schemas={"f": {}}, only_calls=True)
    parser.feed(text)
    parser.finish(is_cut=True)
    assert parser.response() == ParsedResponse("", "")


@pytest.mark.parametrize(
    "text",
    ['{"answer": "', '{"name": "x", "age', '{"name": "other', '{"type": "circle', "[1, 2", "[a"],
)
def test_an_answer_in_json_that_is_cut_is_content(text: str) -> None:
    parser = ResponseParser(FORMATS["llama3"], schemas={"f": {}})
    parser.feed(text)
    parser.finish(is_cut=True)
    assert parser.response() == ParsedResponse(text, "")


def test_without_tools_no_text_is_a_call() -> None:
    for case in CASES:
        parser = parser_of(case, schemas={})
        deltas = fed(parser, [case.text])
        assert whole_text(deltas) == case.text
        assert not parser.response().tool_calls


def test_json_that_names_no_tool_is_an_answer() -> None:
    text = '{"name": "Ada", "parameters": {}}'
    assert parse_response(text, FORMATS["llama3"], schemas={"f": {}}).content == text
    assert len(parse_response(text, FORMATS["llama3"], schemas={"Ada": {}}).tool_calls) == 1


def test_an_answer_in_json_is_passed_on_at_its_first_key() -> None:
    parser = ResponseParser(FORMATS["llama3"])
    assert parser.feed('{"ans') == []
    assert joined(parser.feed('wer": 4')) == [ContentDelta('{"answer": 4')]


def test_blanks_around_a_call_are_content_between_contents_only() -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    for text, content in [
        (f"\n{call}\n", ""),
        (f"a\n\n{call}\n", "a"),
        (f"{call}\nb", "b"),
        (f"a{call}\nb", "a\nb"),
        (f"a{call}\n{call}\nb", "a\nb"),
    ]:
        assert parse_response(text, FORMATS["hermes"]).content == content


def test_a_call_has_a_greatest_length() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * MAX_CALL_CHARACTERS + '"}}'
    whole = ResponseParser(FORMATS["hermes"])
    deltas = fed(whole, [text])
    check_deltas(whole, deltas, text)
    assert "longer than" in whole.response().notes[0]
    cut = ResponseParser(FORMATS["hermes"])
    assert joined(fed(cut, [text[i : i + 4099] for i in range(0, len(text), 4099)])) == (
        joined(deltas)
    )


def test_text_after_the_end_is_ignored() -> None:
    parser = ResponseParser(FORMATS["hermes"])
    parser.feed("a")
    parser.finish()
    assert parser.feed("b") == parser.finish() == []
    assert parser.response().content == "a"


class Steps:
    """Counts the lines that run, and the characters that `TextSource.feed` copies."""

    def __init__(self) -> None:
        self.lines = self.copied = 0

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        self.lines += event == "line"
        return self.trace


def steps_of(name: str, pieces: list[str], monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps = Steps()
    feed = TextSource.feed

    def counted(source: TextSource, text: str) -> None:
        feed(source, text)
        steps.copied += len(source._text)

    monkeypatch.setattr(TextSource, "feed", counted)
    parser = ResponseParser(FORMATS[name])
    before = sys.gettrace()
    sys.settrace(steps.trace)
    try:
        fed(parser, pieces)
    finally:
        sys.settrace(before)
        monkeypatch.setattr(TextSource, "feed", feed)
    return steps


LONG = {
    "a text of beginnings": ("hermes", "", "<tool_cal", ""),
    "markers in a row": ("hermes", "", "<tool_call>", ""),
    "one long argument": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "', "ab c", ""),
    "nested lists": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [', "[1], ", ""),
    "blanks": ("llama3", "", " \n  ", "x"),
    "blanks after content": ("hermes", "a", " \n  ", "x"),
    "blanks in reasoning": ("hermes", "<think>a", " \n  ", "</think>"),
    "a parameter": ("qwen_xml", "<function=f><parameter=a>", "</paramete", ""),
    "keys and values": ("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>", "</arg_valu", ""),
    "objects in a row": ("tool_calls", "<tool_calls>", '{"name": "f"}\n', ""),
    "channels": ("harmony", "", "<|start|>", ""),
    "texts of Gemma": ("gemma4", '<|tool_call>call:f{a:<|"|>', '<|"', ""),
}


@pytest.mark.parametrize("long", LONG)
def test_the_time_is_linear(long: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, begin, repeated, end = LONG[long]
    for size in (1, 1_000_000):  # by the character, and all at once
        steps = []
        for times in (100, 200, 400):
            text = begin + repeated * times + end
            pieces = [text[i : i + size] for i in range(0, len(text), size)]
            steps.append(steps_of(name, pieces, monkeypatch))
        for less, more in pairwise(steps):
            assert more.lines <= 2.2 * less.lines + 200
            assert more.copied <= 2.2 * less.copied + 200


def test_blanks_wait_for_the_text_after_them() -> None:
    passed: list[str] = []
    text = TrimmedText(passed.append)
    for piece in (" a ", "\n", "\t b", "", "c\r\n"):
        text.add(piece)
    assert passed == [" a", " \n\t b", "c"]
    assert text.take_blanks() == "\r\n"
    assert text.take_blanks() == ""
    text.add("d")
    assert passed[-1] == "d"


@given(st.lists(st.text("a \n\u00a0", max_size=4)))
def test_nothing_is_lost(pieces: list[str]) -> None:
    passed: list[str] = []
    text = TrimmedText(passed.append)
    for piece in pieces:
        text.add(piece)
        assert not "".join(passed).endswith((" ", "\n"))
    assert "".join(passed) + text.take_blanks() == "".join(pieces)

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pybatcher.text.output.formats.formats import CallSyntax, ResponseFormat, ThinkMarkers
from pybatcher.text.output.formats.own_template import literals_of, read_own_template
from pybatcher.text.output.read.parser import parse_response

CALL = {"type": "function", "function": "{content}"}
OWN: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|begin|>\n",
    "fields": {
        "thinking": {"open": "<hm>", "close": "</hm>"},
        "tool_calls": {"open": "<c>", "close": "</c>", "content": "json", "transform": CALL},
        "content": {"close": "<|end|>"},
    },
}


def with_field(name: str, **changes: Any) -> dict[str, Any]:
    fields = OWN["fields"]
    return {**OWN, "fields": {**fields, name: {**fields.get(name, {}), **changes}}}


def test_literal_markers_are_read() -> None:
    assert read_own_template(OWN) == ResponseFormat(
        "own", (ThinkMarkers("<hm>", "</hm>"),), (CallSyntax(("<c>",), ("</c>",), ("json",)),)
    )


def test_the_calls_of_an_array_can_have_keys_of_their_own() -> None:
    function = {"name": "{tool_name}", "arguments": "{given}"}
    own = read_own_template(
        with_field(
            "tool_calls",
            open=["<|DO|>", "<|ACT|>"],
            transform_each=True,
            transform={"type": "function", "function": function},
        )
    )
    assert own is not None
    text = '<hm>x</hm><|ACT|>[{"tool_name": "f", "given": {"a": 1}}]</c>'
    (call,) = parse_response(text, own).tool_calls
    assert (call.name, call.arguments) == ("f", {"a": 1})


@pytest.mark.parametrize(
    "own",
    [
        None,
        [],
        "text",
        {},
        {"fields": {}},
        {"fields": []},
        {"properties": {"content": {"x-regex": "(.*)"}}},
        with_field("thinking", open=["<a>", "<b>"]),
        with_field("thinking", open=7),
        with_field("thinking", close=None),
        with_field("tool_calls", open_pattern="<c>(?P<name>.*)"),
        with_field("tool_calls", open=""),
        with_field("tool_calls", open="x" * 65),
        with_field("tool_calls", content="xml-inline"),
        with_field("tool_calls", content_args={"unquoted_keys": True}),
        with_field("tool_calls", transform={"function": {"name": "{content}"}}),
        with_field("tool_calls", transform=7),
        with_field("content", open_pattern="x"),
    ],
)
def test_what_cannot_be_read_is_left_alone(own: object) -> None:
    assert read_own_template(own) is None


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("<tool_call>", ("<tool_call>",)),
        (r"\s*<tool_call>", ("<tool_call>",)),
        (r"\n+<\|act\|>\s*\n?", ("<|act|>",)),
        (r"\s*(?:<\|im_end\|>|<\|endoftext\|>)$", ("<|im_end|>", "<|endoftext|>")),
        (r"(a|b)", ("a", "b")),
        (r"a|\|b\\", ("a", "|b\\")),
        (r"a\nb\Z", ("a\nb",)),
        (r"\[CALLS\]", ("[CALLS]",)),
        ("", ()),
        (r"\s*", ()),
        ("a|", ()),
        ("a.b", ()),
        ("a+", ()),
        ("(a)b", ()),
        (r"(a\)", ()),
        (r"\d", ()),
        (r"\bx", ()),
        ("(?P<name>x)", ()),
        ("(?=x)", ()),
        ("[ab]", ()),
        ("x{2}", ()),
        ("^x", ()),
        ("a\\", ()),
        ("x" * 257, ()),
    ],
)
def test_fixed_texts_are_found(pattern: str, texts: tuple[str, ...]) -> None:
    assert literals_of(pattern) == texts


@given(st.lists(st.text("ab<>|[](){}.\\^$*+? \n", min_size=1, max_size=8), min_size=1, max_size=3))
def test_escaped_texts_come_back(texts: list[str]) -> None:
    found = literals_of("|".join(map(re.escape, texts)))
    assert found in ((), tuple(text.strip() for text in texts))


@given(st.text("ab|\\s*(?:)$[]n+", max_size=12))
@example(r":\n")
@example(r"\n\na|\sb")
def test_what_is_found_matches_with_the_blanks_around_it(pattern: str) -> None:
    blanks = ["\n" * n for n in range(7)]
    for text in literals_of(pattern):
        assert any(re.fullmatch(pattern, a + text + b) for a in blanks for b in blanks)

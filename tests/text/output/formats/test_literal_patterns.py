from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pybatcher.text.output.formats.literal_patterns import literals_of


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

from __future__ import annotations

import re
from typing import TypeVar

import pytest

from pybatcher.text.output.read.markers import Markers
from pybatcher.text.output.read.source import (
    MAX_CALL_CHARACTERS,
    MalformedCallError,
    Reading,
    TextSource,
)

T = TypeVar("T")


def read(reading: Reading[T], source: TextSource, *pieces: str) -> T:
    """What a reader returns when the text comes in these pieces."""
    try:
        for piece in pieces:
            source.feed(piece)
            next(reading)
        source.ended = True
        next(reading)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits for text after the end")


def test_peek_waits_and_takes_nothing() -> None:
    source = TextSource()
    assert read(source.peek(), source, "", "", "ab") == "a"
    assert source.take(2) == "ab"
    assert read(source.peek(), source) == ""


def test_the_longest_literal_is_taken() -> None:
    for pieces in (["abc"], ["a", "b", "c"]):
        source = TextSource()
        assert read(source.literal("ab", "abc", "x"), source, *pieces) == "abc"
    source = TextSource()
    assert read(source.literal("ab", "abc"), source, "a", "b", "d") == "ab"
    assert read(source.literal("ab"), source) == ""
    assert source.take(1) == "d"


def test_a_run_ends_at_the_first_other_character() -> None:
    source = TextSource()
    assert read(source.run(re.compile("[a-c]*")), source, "ab", "", "cax") == "abca"
    assert source.take(1) == "x"
    assert read(source.blanks(), source, " \n", "\t") == " \n\t"


def test_until_passes_text_on_as_soon_as_it_is_certain() -> None:
    source = TextSource()
    passed: list[str] = []
    reading = source.until(Markers(["<end>"]), passed.append)
    source.feed("ab<e")
    next(reading)
    assert passed == ["ab"]
    assert read(reading, source, "x<", "end>c") == "<end>"
    assert "".join(passed) == "ab<ex"
    assert source.take(6) == "<end>c"


def test_until_takes_as_much_as_it_may() -> None:
    for pieces in (["abcdef"], list("abcdef")):
        source = TextSource()
        passed: list[str] = []
        assert read(source.until(Markers(["f"]), passed.append, most=3), source, *pieces) == ""
        assert "".join(passed) == "abc"


def test_a_record_has_all_that_was_taken() -> None:
    source = TextSource()
    heard: list[str] = []
    source.feed("abcdef")
    source.take(1)
    source.record()
    source.take(2)
    source.listener = heard.append
    source.take(1)
    assert source.recorded() == "bcd"
    assert heard == ["d"]
    assert source.recorded() == ""


def test_a_record_has_a_greatest_length() -> None:
    source = TextSource()
    source.record()
    with pytest.raises(MalformedCallError, match="longer than"):
        read(source.blanks(), source, " " * (MAX_CALL_CHARACTERS + 10))
    assert len(source.recorded()) == MAX_CALL_CHARACTERS + 1

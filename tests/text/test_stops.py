from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybatcher.text import StopMatcher
from pybatcher.text.stops import StopTexts

texts = st.text(alphabet="ab", max_size=40)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)


def whole_text_model(text: str, stops: list[str]) -> tuple[str, bool]:
    """What may be passed on of a text that is known as a whole: the match that ends first wins."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return text[: end - max(map(len, matches))], True
    return text, False


def held_back(text: str, stops: list[str]) -> int:
    """Length of the longest end of the text that begins a stop string."""
    ends = (n for n in range(len(text), 0, -1) if any(s.startswith(text[-n:]) for s in stops))
    return next(ends, 0)


def feed(matcher: StopMatcher, pieces: list[str]) -> tuple[str, bool]:
    passed, matched = "", False
    for piece in pieces:
        more, matched = matcher.push(piece)
        passed += more
    return passed + matcher.flush(), matched


@settings(deadline=None)
@given(texts, stop_lists, st.lists(st.integers(0, 40), max_size=8))
def test_any_split_gives_what_the_whole_text_gives(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    expected = whole_text_model(text, stops)
    assert feed(StopMatcher(stops), pieces) == expected
    assert feed(StopMatcher(stops), list(text)) == expected


@settings(deadline=None)
@given(texts, stop_lists)
def test_holds_back_exactly_what_may_become_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    passed = ""
    for n, character in enumerate(text, start=1):
        more, matched = matcher.push(character)
        passed += more
        if matched:
            return
        assert passed == text[: n - held_back(text[:n], stops)]


def test_without_stops_all_passes_at_once() -> None:
    matcher = StopMatcher(())
    assert matcher.push("any text") == ("any text", False)
    assert matcher.flush() == ""


def test_a_match_ends_the_text_for_good() -> None:
    matcher = StopMatcher(("END",))
    assert matcher.push("one EN") == ("one ", False)
    assert matcher.push("D two") == ("", True)
    assert matcher.push(" three END") == ("", True)
    assert matcher.flush() == ""


def test_a_stop_text_that_branches_off_an_earlier_one_continues_no_other() -> None:
    # "xyq" branches off "xyz" behind "ab", and its last character follows that of "ab"
    stops = ["xyz", "ab", "xyq"]
    for text in ("abq", "aab", "xyq", "xyzq", "xabq"):
        assert feed(StopMatcher(stops), list(text)) == whole_text_model(text, stops)
    assert feed(StopMatcher(["cd1", "ab"]), list("cdab")) == ("cd", True)
    assert feed(StopMatcher(["xyz", "uv", "xyq"]), list("uvq")) == ("", True)
    assert feed(StopMatcher(["xyz", "uvw", "xyq"]), list("uvq")) == ("uvq", False)


def test_of_stops_that_end_together_the_longest_is_cut() -> None:
    assert StopMatcher(("b", "ab")).push("xab") == ("x", True)


def test_of_overlapping_stops_the_one_that_ends_first_is_cut() -> None:
    assert StopMatcher(("abcd", "bc")).push("xabcd") == ("xa", True)


def test_what_was_held_back_comes_with_the_end() -> None:
    matcher = StopMatcher(("\n\nUser:",))
    assert matcher.push("done\n\nUse") == ("done", False)
    assert matcher.flush() == "\n\nUse"
    assert matcher.flush() == ""


@pytest.mark.parametrize("stop", ["日本", "🦊!", "e\u0301"])
def test_characters_beyond_ascii(stop: str) -> None:
    assert feed(StopMatcher((stop,)), [f"a{stop[0]}{stop[0]}", f"{stop[1:]}b"]) == (
        f"a{stop[0]}",
        True,
    )


def test_long_stops_cost_no_more_than_short_ones() -> None:
    # 2,000 characters that nearly match at every place: a quadratic search would take minutes.
    stops = ("a" * 20_000 + "b", "a" * 10_000 + "c")
    matcher = StopMatcher(stops)
    passed = sum(len(matcher.push("a" * 50)[0]) for _ in range(4_000))
    assert passed == 200_000 - 20_000
    assert matcher.push("b") == ("", True)


special_texts = st.lists(st.tuples(st.text(alphabet="ab", max_size=4), st.booleans()), max_size=12)


@settings(deadline=None)
@given(special_texts, stop_lists)
def test_hidden_text_is_matched_and_never_passed_on(
    pieces: list[tuple[str, bool]], stops: list[str]
) -> None:
    matcher, passed = StopMatcher(stops), ""
    for text, hidden in pieces:
        more, _ = matcher.push(text, hidden=hidden)
        passed += more
    passed += matcher.flush()
    raw, matched = whole_text_model("".join(text for text, _ in pieces), stops)
    shown = [letter for text, hidden in pieces for letter in (" " * len(text) if hidden else text)]
    assert passed == "".join(shown[: len(raw)]).replace(" ", "")
    assert matcher.push("", hidden=False)[1] is matched


def test_matchers_share_one_automaton_of_few_bytes_a_character() -> None:
    stops = ("ab" * 8000,)
    tracemalloc.start()
    shared = StopTexts(stops)
    size = tracemalloc.get_traced_memory()[0]
    matchers = [StopMatcher(shared) for _ in range(64)]
    grown = tracemalloc.get_traced_memory()[0] - size
    tracemalloc.stop()
    assert size < 40 * len(stops[0])
    assert grown < 64 * 1000
    assert [matcher.push("xabab") for matcher in matchers] == [("x", False)] * 64
    assert matchers[0].push("c") == ("ababc", False)
    assert matchers[1].flush() == "abab"

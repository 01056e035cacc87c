from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pybatcher.text.output.read.markers import Markers

texts = st.text(alphabet="ab<", max_size=20)
marker_lists = st.lists(st.text(alphabet="ab<", min_size=1, max_size=5), max_size=4)


def first_of(text: str, markers: list[str]) -> tuple[int, str]:
    """The first marker of a text that is known as a whole; of those at one place the longest."""
    for at in range(len(text)):
        found = [marker for marker in markers if text.startswith(marker, at)]
        if found:
            return at, max(found, key=len)
    return len(text), ""


@settings(deadline=None)
@given(texts, marker_lists)
def test_a_whole_text_has_its_first_marker(text: str, markers: list[str]) -> None:
    assert Markers(markers).find(text, 0, ended=True) == first_of(text, markers)


@settings(deadline=None)
@given(texts, texts, marker_lists)
def test_what_is_certain_stays_so(begin: str, rest: str, markers: list[str]) -> None:
    at, marker = Markers(markers).find(begin, 0, ended=False)
    whole = first_of(begin + rest, markers)
    if marker:
        assert (at, marker) == whole
    else:
        assert at <= whole[0]
        held = begin[at:]
        assert not held or any(one.startswith(held) and one != held for one in markers)


def test_a_marker_waits_for_a_longer_one_and_for_one_that_began_before() -> None:
    assert Markers(["ab", "abc"]).find("xab", 0, ended=False) == (1, "")
    assert Markers(["ab", "abc"]).find("xabd", 0, ended=False) == (1, "ab")
    assert Markers(["<a<bc", "<b"]).find("<a<b", 0, ended=False) == (0, "")
    assert Markers(["<a<bc", "<b"]).find("<a<b", 0, ended=True) == (2, "<b")


def test_looks_from_the_start_that_is_given() -> None:
    assert Markers(["ab"]).find("abab", 1, ended=True) == (2, "ab")
    assert Markers([]).find("abab", 1, ended=False) == (4, "")

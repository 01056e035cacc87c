"""What a text's own past says about how it goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybatcher.scheduling.lookup import PromptLookup


def lookup(text: list[int]) -> PromptLookup:
    made = PromptLookup(text)
    assert made.index(10**9) == max(0, len(text) - 2)
    return made


def by_hand(text: list[int], count: int) -> tuple[list[int], int]:
    """The same, looking at every place."""
    best, most = 0, 1
    for place in range(len(text) - 1, 1, -1):
        common = 0
        while common < min(8, place) and text[place - 1 - common] == text[-1 - common]:
            common += 1
        if common > most:
            best, most = place, common
    if most < 2:
        return [], 0
    resumed = list(text)
    for i in range(count):
        resumed.append(resumed[best + i])
    return resumed[len(text) :], most


@given(st.lists(st.integers(0, 2), max_size=16), st.integers(1, 9))
def test_it_finds_the_longest_and_of_equals_the_latest(text: list[int], count: int) -> None:
    assert lookup(text).draft(count) == by_hand(text, count)


def test_what_followed_last_time() -> None:
    assert lookup([1, 2, 3, 4, 5, 9, 1, 2]).draft(3) == ([3, 4, 5], 2)


def test_a_longer_match_counts_more_than_a_later_one() -> None:
    assert lookup([7, 1, 2, 3, 0, 1, 2, 4, 7, 1, 2]).draft(1) == ([3], 3)


def test_a_text_that_goes_round_goes_on_going_round() -> None:
    assert lookup([5, 1, 2, 3, 1, 2, 3, 1, 2]).draft(7) == ([3, 1, 2, 3, 1, 2, 3], 5)
    assert lookup([4, 4, 4]).draft(5) == ([4, 4, 4, 4, 4], 2)


def test_a_new_end_has_nothing_before_it() -> None:
    for text in ([], [1], [1, 1], [1, 2, 3, 4], [1, 2, 3, 2, 4, 3]):
        assert lookup(text).draft(4) == ([], 0)


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3]])
def test_what_comes_later_is_found(text: list[int]) -> None:
    found = lookup(text)
    for token in (5, 6, 7, 5, 6):
        found.extend([token])
        found.index(1)
        assert not found.n_unindexed
    assert found.draft(1) == ([7], 2)


def test_what_is_not_indexed_yet_is_not_found() -> None:
    found = PromptLookup([1, 2, 3, 1, 2, 4, 0, 1, 2])
    assert found.n_unindexed == 7
    assert found.draft(1) == ([], 0)
    assert found.index(1) == 1
    assert found.draft(1) == ([3], 2)
    found.extend([4, 1, 2])
    assert found.draft(1) == ([3], 2)
    assert found.index(3) == 3
    assert found.draft(1) == ([4], 2)
    assert found.n_unindexed == 6
    assert found.index(100) == 6
    assert found.n_unindexed == 0
    assert found.draft(2) == ([4, 1], 2)


def test_pairs_of_one_bucket_are_told_apart() -> None:
    text = [1, 2, 3, 1, 2 + 4096, 7, 1, 2]
    assert lookup(text).draft(1) == ([3], 2)
    assert lookup([1, 2 + 4096, 7, 1, 2]).draft(1) == ([], 0)


def test_a_search_looks_at_so_many_places_and_no_more() -> None:
    rare, common = [8, 1, 2, 3], [9, 1, 2, 4]
    assert lookup(rare + common * 10 + [8, 1, 2]).draft(1) == ([3], 3)
    assert lookup(rare + common * 20 + [8, 1, 2]).draft(1) == ([4], 2)

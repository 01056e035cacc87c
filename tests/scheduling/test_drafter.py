"""How many draft tokens are worth their rows, and how verified drafts change that."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybatcher.scheduling.drafter import Drafter, PromptLookup, Terms
from pybatcher.scheduling.images import FIRST_IMAGE_ID

CHEAP, DEAR = 1 / 17, 0.7  # one sequence in a step, and some forty
CIRCLE = [1, 2, 3, 4, 5]


class Text:
    """A drafter, what came after its prompt, and what is yet to come."""

    def __init__(
        self,
        prompt: list[int],
        coming: list[int] | None = None,
        end_token_ids: frozenset[int] = frozenset(),
        dearer_search: float = 1.0,
        longest_rest: int = 7,
    ) -> None:
        self.dearer_search = dearer_search
        self.longest_rest = longest_rest
        self.drafter = Drafter(prompt, end_token_ids)
        self.drafter.read(10**9)
        self.output: list[int] = []
        self.coming = coming or []
        self.searches = 0
        self.rest = 0

    def draft(self, worth: float, n_most: int = 8) -> tuple[int, ...]:
        terms = Terms(worth, worth * self.dearer_search, self.longest_rest)
        return self.drafter.draft(self.output, n_most, terms)

    def step(self, worth: float) -> int:
        """A step, as the scheduler and the engine do it; returns how many draft tokens it had."""
        draft: tuple[int, ...] = ()
        if self.rest:
            self.rest -= 1
        else:
            self.searches += 1
            draft = self.draft(worth)
            self.rest = self.drafter.rest
        n_right = 0
        while n_right < len(draft) and draft[n_right] == self.coming[n_right]:
            n_right += 1
        self.output += self.coming[: n_right + 1]
        del self.coming[: n_right + 1]
        return len(draft)


def test_a_text_that_repeats_itself_gets_longer_drafts() -> None:
    text = Text(CIRCLE * 2, CIRCLE * 30)
    lengths = [text.step(CHEAP) for _ in range(12)]
    assert 1 <= lengths[0] < 8
    assert lengths == sorted(lengths)
    assert lengths[-1] == 8


def test_a_text_that_goes_another_way_each_time_gets_none() -> None:
    coming = [token for new in range(100, 300) for token in (1, 2, new)]
    text = Text([1, 2, 3], coming)
    lengths = [text.step(CHEAP) for _ in range(500)]
    assert max(lengths) > 0
    assert sum(lengths[-60:]) <= 2


def test_a_text_where_nothing_comes_again_is_seldom_looked_at() -> None:
    text = Text([1, 2, 3], list(range(100, 500)))
    for _ in range(400):
        assert text.step(CHEAP) == 0
    assert text.searches < 400 / 7
    text.coming += CIRCLE * 20
    steps = 0
    while text.coming[60:]:
        text.step(CHEAP)
        steps += 1
    assert steps < 30, "and noticed soon when that changes"
    before, first = text.searches, len(text.output)
    text.step(CHEAP)
    assert (text.searches - before, len(text.output) - first) == (1, 9), "no rest any more"


@pytest.mark.parametrize("longest_rest", [7, 20, 50])
def test_what_does_not_repeat_itself_rests_as_long_as_it_may(longest_rest: int) -> None:
    text = Text([1, 2, 3], list(range(100, 1100)), longest_rest=longest_rest)
    for _ in range(1000):
        assert text.step(CHEAP) == 0
    assert 1000 / (longest_rest + 1) - 1 < text.searches < 1000 / (longest_rest + 1) + 6


def test_drafts_that_are_seldom_right_must_pay_for_the_search() -> None:
    searches = []
    for dearer_search in (1.0, 3.0):
        rng = random.Random(5)
        coming = rng.choices((1, 2, 3), (6, 1, 1), k=900)
        text = Text([1, 2, 3] * 3, coming, dearer_search=dearer_search, longest_rest=50)
        for _ in range(300):
            text.step(0.25)
        searches.append(text.searches)
    assert searches[1] < searches[0] / 2
    text.coming = CIRCLE * 200
    lengths = [text.step(0.25) for _ in range(160)]
    assert min(lengths[-5:]) > 5, "what pays is noticed after two rests at most"


def test_where_rows_are_dear_it_searches_on_until_drafts_are_right() -> None:
    text = Text(CIRCLE * 2, CIRCLE * 60)
    lengths = [text.step(DEAR) for _ in range(40)]
    assert lengths[0] == 0
    assert lengths[-1] > 1


def test_dearer_rows_make_shorter_drafts() -> None:
    lengths = []
    for worth in (0.05, 0.2, 0.4, 0.6, 0.9):
        lengths.append(len(Text(CIRCLE * 4).draft(worth)))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[2] > lengths[-1] == 0


def test_a_longer_common_past_is_trusted_more() -> None:
    short = Text([1, 2, 7, 7, 7, 8, 1, 2]).draft(0.15)
    long = Text([1, 2, 3, 4, 7, 7, 8, 1, 2, 3, 4]).draft(0.15)
    assert 0 < len(short) < len(long)


def test_no_more_than_it_may() -> None:
    text = Text(CIRCLE * 8, CIRCLE * 8)
    for _ in range(4):
        text.step(CHEAP)
    assert [len(text.draft(CHEAP, n)) for n in (1, 2, 8)] == [1, 2, 8]


def test_an_end_token_is_never_drafted() -> None:
    text = [1, 2, 3, 9, 5, 1, 2]
    assert Text(text).draft(0.01)[:2] == (3, 9)
    assert Text(text, end_token_ids=frozenset({9})).draft(0.01) == (3,)
    assert Text(text, end_token_ids=frozenset({3})).draft(0.01) == ()


def test_an_image_is_never_drafted() -> None:
    image = [FIRST_IMAGE_ID + i for i in range(4)]
    assert Text([1, 2, 3, *image, 5, 1, 2]).draft(0.01) == (3,)
    assert Text([1, 2, *image, 5, 1, 2]).draft(0.01) == ()


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

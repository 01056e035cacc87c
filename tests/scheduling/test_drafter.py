"""How many guesses are worth their rows, and how that follows what came of earlier ones."""

from __future__ import annotations

from pybatcher.scheduling.drafter import Drafter

CHEAP, DEAR = 1 / 17, 0.7  # one sequence in a step, and some forty
CIRCLE = [1, 2, 3, 4, 5]


def drafter(prompt: list[int], end_token_ids: frozenset[int] = frozenset()) -> Drafter:
    made = Drafter(prompt, end_token_ids)
    made.read(10**9)
    return made


def step(guessing: Drafter, coming: list[int], worth: float, n_most: int = 8) -> tuple[int, int]:
    """A step of a text that goes on with `coming`: how many guesses it had, and right ones."""
    guessing.read(100)
    draft = guessing.draft(n_most, worth)
    n_right = 0
    while n_right < len(draft) and draft[n_right] == coming[n_right]:
        n_right += 1
    guessing.take(coming[: n_right + 1])
    del coming[: n_right + 1]
    return len(draft), n_right


def test_a_text_that_repeats_itself_gets_longer_drafts() -> None:
    guessing, coming = drafter(CIRCLE * 2), CIRCLE * 30
    lengths = [step(guessing, coming, CHEAP)[0] for _ in range(12)]
    assert 1 <= lengths[0] < 8
    assert lengths == sorted(lengths)
    assert lengths[-1] == 8


def test_a_text_that_goes_another_way_each_time_gets_none() -> None:
    guessing = drafter([1, 2, 3])
    lengths = []
    for new in range(100, 200):
        for token in (1, 2, new):
            guessing.read(100)
            lengths.append(len(guessing.draft(8, CHEAP)))
            guessing.take([token])
    assert max(lengths) > 0
    assert sum(lengths[-30:]) == 0


def test_where_rows_are_dear_it_looks_on_until_guesses_come_true() -> None:
    guessing, coming = drafter(CIRCLE * 2), CIRCLE * 60
    lengths = [step(guessing, coming, DEAR)[0] for _ in range(40)]
    assert lengths[0] == 0
    assert lengths[-1] > 1


def test_dearer_rows_make_shorter_drafts() -> None:
    lengths = []
    for worth in (0.05, 0.2, 0.4, 0.6, 0.9):
        lengths.append(len(drafter(CIRCLE * 4).draft(8, worth)))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[2] > lengths[-1] == 0


def test_a_longer_common_past_is_trusted_more() -> None:
    short = drafter([1, 2, 7, 7, 7, 8, 1, 2]).draft(8, 0.15)
    long = drafter([1, 2, 3, 4, 7, 7, 8, 1, 2, 3, 4]).draft(8, 0.15)
    assert 0 < len(short) < len(long)


def test_no_more_than_it_may() -> None:
    guessing, coming = drafter(CIRCLE * 8), CIRCLE * 8
    for _ in range(4):
        step(guessing, coming, CHEAP)
    assert [len(guessing.draft(n, CHEAP)) for n in (1, 2, 8)] == [1, 2, 8]


def test_an_end_token_is_never_guessed() -> None:
    text = [1, 2, 3, 9, 5, 1, 2]
    assert drafter(text).draft(8, 0.01)[:2] == (3, 9)
    assert drafter(text, frozenset({9})).draft(8, 0.01) == (3,)
    assert drafter(text, frozenset({3})).draft(8, 0.01) == ()

from __future__ import annotations

from array import array

from pybatcher.ray.held_prefixes import MOST_REPORTED, HeldPrefixes


def reported(held: HeldPrefixes) -> list[int]:
    return list(array("Q", held.report()))


def test_the_blocks_used_last_are_kept() -> None:
    held = HeldPrefixes(5)
    held.use([1, 2, 3])
    held.use([4, 5])
    held.use([1, 2])
    held.use([6, 7])
    assert len(held) == 5
    assert reported(held) == [6, 7, 1, 2, 4]


def test_of_a_prompt_that_is_too_long_the_beginning_is_kept() -> None:
    held = HeldPrefixes(3)
    held.use(range(10))
    assert reported(held) == [0, 1, 2]


def test_a_report_is_bounded() -> None:
    held = HeldPrefixes(10 * MOST_REPORTED)
    held.use(range(2 * MOST_REPORTED))
    assert reported(held) == list(range(MOST_REPORTED))

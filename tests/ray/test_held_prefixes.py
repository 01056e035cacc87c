from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

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
    assert [held.matched(one) for one in ([1, 2, 3], [3, 4], [6], [])] == [2, 0, 1, 0]


def test_of_a_prompt_that_is_too_long_the_beginning_is_kept() -> None:
    held = HeldPrefixes(3)
    held.use(range(10))
    assert reported(held) == [0, 1, 2]


def test_a_report_is_bounded() -> None:
    held = HeldPrefixes(10 * MOST_REPORTED)
    held.use(range(2 * MOST_REPORTED))
    assert reported(held) == list(range(MOST_REPORTED))


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12)), max_size=20))
def test_a_block_is_held_with_all_those_before_it(
    capacity: int, prompts: list[tuple[int, int]]
) -> None:
    """So `n_held` may look at a few places of a prompt."""
    held = HeldPrefixes(capacity)
    for name, length in prompts:
        held.use(range(100 * name, 100 * name + length))
    known = set(reported(held))
    for name in range(6):
        blocks = range(100 * name, 100 * name + 12)
        assert held.matched(blocks) == sum(one in known for one in blocks)

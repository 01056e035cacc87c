from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pybatcher.ray.ranking import ranked


def test_the_longest_prefix_wins_among_replicas_that_are_nearly_as_free() -> None:
    assert ranked([3, 0, 2], [2, 0, 5], imbalance=4) == [2, 0, 1]


def test_a_replica_that_is_much_busier_comes_last_whatever_it_holds() -> None:
    assert ranked([9, 0, 2], [8, 0, 1], imbalance=4) == [2, 1, 0]
    assert ranked([4, 0, 2], [8, 0, 1], imbalance=4) == [0, 2, 1]


def test_without_a_prefix_the_load_decides() -> None:
    assert ranked([3, 1, 2], [0, 0, 0], imbalance=8) == [1, 2, 0]


def test_equals_take_turns() -> None:
    firsts = [ranked([1, 1, 1], [0, 0, 0], turn=turn)[0] for turn in range(6)]
    assert firsts == [0, 1, 2, 0, 1, 2]


def test_no_replica_is_no_choice() -> None:
    assert ranked([], []) == []


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 9)), min_size=1), st.integers())
def test_every_replica_is_there_once_and_the_first_is_never_too_busy(
    replicas: list[tuple[float, int]], turn: int
) -> None:
    loads, matched = [load for load, _ in replicas], [n for _, n in replicas]
    order = ranked(loads, matched, imbalance=5, turn=turn)
    assert sorted(order) == list(range(len(replicas)))
    assert loads[order[0]] <= min(loads) + 5

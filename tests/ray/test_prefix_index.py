from __future__ import annotations

from array import array

from pybatcher.ray.prefix_index import _MOST_ROUTED, PrefixIndex


def report(*hashes: int) -> bytes:
    return array("Q", hashes).tobytes()


def test_a_prompt_matches_up_to_the_first_block_that_is_not_held() -> None:
    index = PrefixIndex()
    index.reported("a", report(1, 2, 8))
    assert [index.matched("a", [1, 2, 3, 4][:n]) for n in range(5)] == [0, 1, 2, 2, 2]
    assert index.matched("a", [3, 1]) == 0
    assert index.matched("b", [1]) == 0


def test_what_was_routed_is_held_until_two_reports_have_come_without_it() -> None:
    index = PrefixIndex()
    index.reported("a", report(7))
    index.routed("a", [1, 2])
    assert index.matched("a", [1, 2]) == 2
    index.reported("a", report(8))  # may have been made before the request came
    assert index.matched("a", [1, 2]) == 2
    index.reported("a", report(9))
    assert index.matched("a", [1, 2]) == 0


def test_a_block_that_is_evicted_is_reported_no_more() -> None:
    index = PrefixIndex()
    index.reported("a", report(1, 2))
    index.reported("a", report(2))
    assert index.matched("a", [1, 2]) == 0


def test_the_same_report_again_changes_nothing() -> None:
    index, held = PrefixIndex(), report(1)
    index.reported("a", held)
    index.routed("a", [1, 5])
    for _ in range(5):
        index.reported("a", held)
    assert index.matched("a", [1, 5]) == 2


def test_memory_is_bounded() -> None:
    index = PrefixIndex()
    index.routed("a", range(_MOST_ROUTED, 2 * _MOST_ROUTED))
    index.routed("a", range(10))
    assert index.matched("a", range(10)) == 10
    assert index.matched("a", range(_MOST_ROUTED, 2 * _MOST_ROUTED)) == _MOST_ROUTED - 10
    index.routed("b", [1])
    index.keep_only(["b", "c"])
    assert len(index) == 1
    assert index.matched("b", [1]) == 1


def test_a_report_that_is_cut_off_harms_nothing() -> None:
    index = PrefixIndex()
    index.reported("a", report(1, 2)[:-3])
    assert index.matched("a", [1, 2]) == 1

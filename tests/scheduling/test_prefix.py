"""Shared prefixes as a table: holders, limits, and which of them a prompt begins with."""

from __future__ import annotations

import pytest

from pybatcher.errors import (
    EngineError,
    InvalidRequestError,
    NoFreeSequenceError,
    RequestTooLongError,
)
from pybatcher.scheduling import SharedPrefix
from pybatcher.scheduling.prefix import SharedPrefixes, common_length
from pybatcher.testing import FakeEngine


def table(max_prefixes: int = 2) -> SharedPrefixes:
    return SharedPrefixes(FakeEngine(n_ctx=256), max_prefixes)


def prefix(*tokens: int, namespace: str = "") -> SharedPrefix:
    return SharedPrefix(tokens, namespace)


def test_equal_ones_are_one_with_more_holders() -> None:
    prefixes, removed = table(), []
    first = prefixes.add(prefix(1, 2, 3))
    first.seq_id = 5
    assert prefixes.add(prefix(1, 2, 3)) is first
    other = prefixes.add(prefix(1, 2, 3, namespace="other"))
    assert (len(prefixes), list(prefixes)) == (2, [first, other])
    prefixes.release(first, removed.append)
    assert (len(prefixes), removed) == (2, [])
    prefixes.release(first, removed.append)
    assert (list(prefixes), removed, first.seq_id) == ([other], [5], -1)
    prefixes.release(other, removed.append)
    assert removed == [5], "that had no sequence"


def test_limits() -> None:
    prefixes = table(max_prefixes=1)
    with pytest.raises(InvalidRequestError, match="no tokens"):
        prefixes.add(prefix())
    with pytest.raises(RequestTooLongError, match="has 1000 tokens; there is room for"):
        prefixes.add(prefix(*range(1000)))
    prefixes.add(prefix(1))
    with pytest.raises(NoFreeSequenceError, match="all 1 shared prefixes are in use"):
        prefixes.add(prefix(2))
    assert prefixes.add(prefix(1)).holders == 2


def test_one_that_failed_goes_whoever_holds_it_and_says_why() -> None:
    prefixes, removed = table(), []
    one, error = prefixes.add(prefix(1, 2)), EngineError("no")
    prefixes.add(prefix(1, 2))
    one.seq_id = 3
    prefixes.fail(one, error, removed.append)
    assert (len(prefixes), removed, one.error) == (0, [3], error)
    prefixes.release(one, removed.append)
    prefixes.release(one, removed.append)
    assert removed == [3]


def test_the_longest_common_beginning_of_the_namespace_but_for_the_last_token() -> None:
    prefixes = table(max_prefixes=3)
    short, long = prefixes.add(prefix(1, 2)), prefixes.add(prefix(1, 2, 3, 4))
    prefixes.add(prefix(1, 2, 3, 4, 5, 6, namespace="other"))
    assert prefixes.longest((1, 2, 3, 9, 9), "") == (long, 3)
    assert prefixes.longest((1, 2, 9), "") == (short, 2)
    assert prefixes.longest((1, 2, 3, 4), "") == (long, 3)
    assert prefixes.longest((9, 2, 3), "") == (None, 0)
    assert prefixes.longest((1,), "") == (None, 0)


def test_without_a_sequence_they_wait() -> None:
    prefixes = table()
    one = prefixes.add(prefix(1, 2, 3))
    assert (prefixes.waiting, prefixes.have_grown) == ([one], False)
    prefixes.start(one)
    assert (prefixes.waiting, prefixes.have_grown) == ([], True)
    one.num_computed_tokens = 3
    prefixes.lose_kv()
    assert (prefixes.waiting, one.num_tokens_to_compute) == ([one], 3)


@pytest.mark.parametrize(
    ("first", "second", "n"), [("abc", "abd", 2), ("", "a", 0), ("ab", "abc", 2), ("b", "a", 0)]
)
def test_common_length(first: str, second: str, n: int) -> None:
    assert common_length([*map(ord, first)], [*map(ord, second)]) == n

"""When the next try to connect is due: a sequence of numbers, no clock."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from pybatcher.sidecar.client.backoff import Backoff


def waits(backoff: Backoff, n: int, now: float = 100.0) -> list[float]:
    """Of tries that fail as soon as they are made."""
    given = []
    for _ in range(n):
        given.append(backoff.delay(now))
        now += given[-1]
    return given


def test_the_first_try_is_at_once_and_later_waits_double_up_to_the_longest() -> None:
    first, *rest = waits(Backoff(Random(1)), 40)
    assert first == 0.0
    for i, wait in enumerate(rest):
        most = min(Backoff.LONGEST, Backoff.FIRST * 2**i)
        assert most / 2 <= wait <= most
    assert max(rest) > Backoff.LONGEST * 0.9


def test_the_longest_may_be_shorter() -> None:
    _, *rest = waits(Backoff(Random(1), longest=0.2), 40)
    assert 0.18 < max(rest) <= 0.2


def test_waits_are_uneven_and_follow_from_the_random_numbers_given() -> None:
    one, other = waits(Backoff(Random(1)), 20), waits(Backoff(Random(2)), 20)
    assert one == waits(Backoff(Random(1)), 20)
    assert all(a != b for a, b in zip(one[1:], other[1:], strict=True))
    assert all(a != b for a, b in pairwise(one[8:]))


def test_after_a_rest_it_begins_anew() -> None:
    backoff = Backoff(Random(1))
    waits(backoff, 5, now=0.0)
    assert backoff.delay(1000.0) == 0.0
    assert backoff.delay(1000.0) > 0.0


def test_a_connection_that_is_lost_at_once_is_no_rest() -> None:
    backoff, now = Backoff(Random(1)), 0.0
    given = []
    for _ in range(12):
        now += backoff.delay(now) + Backoff.LONGEST / 2
        given.append(backoff.delay(now))
    assert all(wait > 0 for wait in given)

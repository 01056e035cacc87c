"""Who kills workers is found, at the price of three more deaths, and nobody else is blamed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybatcher.sidecar.replay.poison import PoisonCalls


@dataclass(eq=False)
class Call:
    name: str
    num_tokens: int = 0
    seen_length: int = -1
    n_cleared: int = 0
    ended: bool = False


def test_a_first_death_is_nobodys_fault() -> None:
    poison = PoisonCalls()
    calls = [Call("a"), Call("b")]
    assert poison.died(calls) is None
    assert not poison.suspects


def test_who_has_got_a_token_since_is_not_suspected() -> None:
    poison = PoisonCalls()
    calls = [Call("a", 3), Call("b", 1)]
    poison.died(calls)
    for call in calls:
        call.num_tokens += 1
    assert poison.died(calls) is None
    assert not poison.suspects


def test_after_a_second_death_without_a_token_all_go_on_one_at_a_time() -> None:
    poison = PoisonCalls()
    a, b, c = calls = [Call("a"), Call("b"), Call("c")]
    poison.died(calls)
    b.num_tokens = 5
    assert poison.died(calls) is None
    assert poison.suspects == [a, b, c]
    assert poison.acquit() is None  # a has got nothing yet
    a.num_tokens = 1
    assert poison.acquit() is a
    assert poison.suspects == [b, c]
    b.ended = True
    assert poison.acquit() is b
    assert poison.died([c]) is None  # somebody may have killed it
    assert poison.died([c]) is c  # it was alone, and again a worker has died with it
    assert not poison.suspects


def test_a_death_between_two_trials_blames_nobody() -> None:
    poison = PoisonCalls()
    a, b = calls = [Call("a"), Call("b")]
    poison.died(calls)
    poison.died(calls)
    assert poison.died([]) is None
    assert poison.suspects == [a, b]


def test_after_deaths_from_lack_of_memory_calls_with_tokens_are_suspected_too() -> None:
    poison = PoisonCalls()
    a, b = calls = [Call("a"), Call("b")]
    poison.died(calls, with_tokens=True)
    assert not poison.suspects
    a.num_tokens = b.num_tokens = 5
    assert poison.died(calls, with_tokens=True) is None
    assert poison.suspects == [a, b]
    for call in calls:
        call.num_tokens += 1
        assert poison.acquit() is call
    # together they need too much again: each needs eight times as many tokens alone
    poison.died(calls, with_tokens=True)
    assert poison.suspects == [a, b]
    a.num_tokens += 7
    assert poison.acquit() is None
    a.num_tokens += 1
    assert poison.acquit() is a
    b.num_tokens += 7  # and no more of them fit
    assert poison.died([b], with_tokens=True) is None
    assert poison.died([b], with_tokens=True) is b


def test_a_call_that_was_cleared_often_needs_no_more_than_so_many_tokens_alone() -> None:
    poison = PoisonCalls()
    a = Call("a", n_cleared=9, seen_length=0)
    poison.died([a])
    a.num_tokens = 512
    assert poison.acquit() is a


def test_an_ended_call_is_never_the_cause() -> None:
    poison = PoisonCalls()
    a = Call("a")
    for _ in range(3):
        assert poison.died([a]) is None
    a.ended = True
    assert poison.died([a]) is None


def test_who_gets_a_token_between_two_deaths_alone_is_not_the_cause() -> None:
    poison = PoisonCalls()
    a = Call("a")
    for _ in range(3):
        assert poison.died([a]) is None
    a.num_tokens = 1
    assert poison.acquit() is a
    for _ in range(3):
        assert poison.died([a]) is None
    assert poison.died([a]) is a


@given(st.integers(1, 6), st.data())
def test_the_cause_is_found_whoever_it_is_and_nobody_else(n: int, data: st.DataObject) -> None:
    """Workers die as soon as the guilty call is sent; others get a token when they are sent."""
    poison = PoisonCalls()
    calls = [Call(str(i)) for i in range(n)]
    guilty = data.draw(st.sampled_from(calls))
    deaths = 0
    while not guilty.ended:
        sent = poison.suspects[:1] or [call for call in calls if not call.ended]
        if guilty in sent:
            deaths += 1
            found = poison.died([call for call in sent if isinstance(call, Call)])
            if found is not None:
                assert found is guilty
                guilty.ended = True
        else:
            for call in sent:
                call.num_tokens += 1
            assert poison.acquit() is not None
    assert deaths == 4


@pytest.mark.parametrize("n", [1, 2, 5])
def test_when_all_have_got_past_nobody_is_alone_any_more(n: int) -> None:
    poison = PoisonCalls()
    calls = [Call(str(i)) for i in range(n)]
    poison.died(calls)
    poison.died(calls)
    for call in calls:
        call.num_tokens += 1
        assert poison.acquit() is call
    assert poison.acquit() is None
    assert not poison.suspects


def test_a_worker_that_dies_with_nothing_to_do_blames_nobody() -> None:
    assert PoisonCalls().died([]) is None

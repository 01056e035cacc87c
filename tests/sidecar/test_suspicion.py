"""Who kills workers is found, at the price of three more deaths, and nobody else is blamed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybatcher.sidecar.suspicion import Suspicion


@dataclass(eq=False)
class Call:
    name: str
    num_tokens: int = 0
    seen_length: int = -1
    ended: bool = False


def test_a_first_death_is_nobodys_fault() -> None:
    suspicion = Suspicion()
    calls = [Call("a"), Call("b")]
    assert suspicion.died(calls) is None
    assert not suspicion.suspects


def test_who_has_got_a_token_since_is_not_suspected() -> None:
    suspicion = Suspicion()
    calls = [Call("a", 3), Call("b", 1)]
    suspicion.died(calls)
    for call in calls:
        call.num_tokens += 1
    assert suspicion.died(calls) is None
    assert not suspicion.suspects


def test_after_a_second_death_without_a_token_all_go_on_one_at_a_time() -> None:
    suspicion = Suspicion()
    a, b, c = calls = [Call("a"), Call("b"), Call("c")]
    suspicion.died(calls)
    b.num_tokens = 5
    assert suspicion.died(calls) is None
    assert suspicion.suspects == [a, b, c]
    assert suspicion.acquit() is None  # a has got nothing yet
    a.num_tokens = 1
    assert suspicion.acquit() is a
    assert suspicion.suspects == [b, c]
    b.ended = True
    assert suspicion.acquit() is b
    assert suspicion.died([c]) is None  # somebody may have killed it
    assert suspicion.died([c]) is c  # it was alone, and again a worker has died with it
    assert not suspicion.suspects


def test_a_death_between_two_trials_blames_nobody() -> None:
    suspicion = Suspicion()
    a, b = calls = [Call("a"), Call("b")]
    suspicion.died(calls)
    suspicion.died(calls)
    assert suspicion.died([]) is None
    assert suspicion.suspects == [a, b]


def test_an_ended_call_is_never_the_cause() -> None:
    suspicion = Suspicion()
    a = Call("a")
    for _ in range(3):
        assert suspicion.died([a]) is None
    a.ended = True
    assert suspicion.died([a]) is None


def test_who_gets_a_token_between_two_deaths_alone_is_not_the_cause() -> None:
    suspicion = Suspicion()
    a = Call("a")
    for _ in range(3):
        assert suspicion.died([a]) is None
    a.num_tokens = 1
    assert suspicion.acquit() is a
    for _ in range(3):
        assert suspicion.died([a]) is None
    assert suspicion.died([a]) is a


@given(st.integers(1, 6), st.data())
def test_the_cause_is_found_whoever_it_is_and_nobody_else(n: int, data: st.DataObject) -> None:
    """Workers die as soon as the guilty call is sent; others get a token when they are sent."""
    suspicion = Suspicion()
    calls = [Call(str(i)) for i in range(n)]
    guilty = data.draw(st.sampled_from(calls))
    deaths = 0
    while not guilty.ended:
        sent = suspicion.suspects[:1] or [call for call in calls if not call.ended]
        if guilty in sent:
            deaths += 1
            found = suspicion.died([call for call in sent if isinstance(call, Call)])
            if found is not None:
                assert found is guilty
                guilty.ended = True
        else:
            for call in sent:
                call.num_tokens += 1
            assert suspicion.acquit() is not None
    assert deaths == 4


@pytest.mark.parametrize("n", [1, 2, 5])
def test_when_all_have_got_past_nobody_is_alone_any_more(n: int) -> None:
    suspicion = Suspicion()
    calls = [Call(str(i)) for i in range(n)]
    suspicion.died(calls)
    suspicion.died(calls)
    for call in calls:
        call.num_tokens += 1
        assert suspicion.acquit() is call
    assert suspicion.acquit() is None
    assert not suspicion.suspects


def test_a_worker_that_dies_with_nothing_to_do_blames_nobody() -> None:
    assert Suspicion().died([]) is None

"""`PoisonRequests`: candidates run alone, and the one that fails alone is poison."""

from __future__ import annotations

from live_requests import live_request

from pybatcher.scheduling.poison import PoisonRequests


def test_candidates_come_one_after_the_other_until_each_is_past_the_failure() -> None:
    poison = PoisonRequests()
    first, second = live_request(0), live_request(1)
    assert poison.step_failed([first, second]) is None
    assert poison.current is first
    first.output.append(5)
    assert poison.current is second
    second.ended = True
    assert poison.current is None


def test_a_candidate_that_fails_alone_is_poison() -> None:
    poison = PoisonRequests()
    live = live_request(0)
    assert poison.step_failed([live]) is None, "it was alone, but no candidate"
    assert poison.step_failed([live]) is live

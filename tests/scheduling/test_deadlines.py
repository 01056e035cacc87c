"""Whose time is up: each once, and never somebody who has left."""

from __future__ import annotations

from live_requests import live_request

from pybatcher.scheduling.deadlines import Deadlines


def test_deadlines_of_those_who_left_do_not_count() -> None:
    deadlines = Deadlines()
    lives = [live_request(i, deadline=at) for i, at in enumerate([1.0, 3.0, 2.0, None])]
    for live in lives:
        deadlines.add(live)
    lives[0].ended = True
    assert deadlines.next == 2.0
    assert deadlines.pop_passed(1.9) is None
    assert deadlines.pop_passed(2.0) is lives[2]
    assert deadlines.pop_passed(2.0) is None
    assert deadlines.next == 3.0
    assert deadlines.pop_passed(99.0) is lives[1]
    assert deadlines.next is None


def test_those_who_left_are_forgotten_long_before_their_time() -> None:
    deadlines = Deadlines()
    for request_id in range(10_000):
        live = live_request(request_id, deadline=1e9)
        deadlines.add(live)
        live.ended = True
    assert len(deadlines._heap) < 200

"""Turns of groups, each charged with its tokens; and the order inside a group."""

from __future__ import annotations

from operator import attrgetter

from live_requests import live_request

from pybatcher.scheduling.fair_turns import BySeniority, FairTurns
from pybatcher.scheduling.request import LiveRequest


class Waiting:
    """`FairTurns` over namespaces, with the ids of all that wait."""

    def __init__(self, max_debts: int = 100) -> None:
        self.ids: set[int] = set()
        self.turns = FairTurns(attrgetter("namespace"), lambda: BySeniority(self.ids), max_debts)

    def add(self, request_id: int, namespace: str, seniority: float = 0.0) -> LiveRequest:
        live = live_request(request_id, namespace=namespace, seniority=seniority)
        self.ids.add(request_id)
        self.turns.append(live)
        return live

    def discard(self, live: LiveRequest) -> None:
        self.ids.remove(live.request.request_id)

    def serve(self, charge: float = 1.0) -> int:
        live = self.turns.head
        assert live is not None
        self.turns.pop(charge)
        self.ids.remove(live.request.request_id)
        return live.request.request_id

    def serve_all(self, charge: float = 1.0) -> list[int]:
        return [self.serve(charge) for _ in range(len(self.ids))]


def test_groups_take_turns_whatever_they_have() -> None:
    waiting = Waiting()
    for i in range(4):
        waiting.add(i, "loud")
    waiting.add(10, "quiet")
    waiting.add(11, "quiet")
    assert waiting.serve_all() == [0, 10, 1, 11, 2, 3]
    assert waiting.turns.head is None


def test_who_is_charged_more_waits_longer() -> None:
    waiting = Waiting()
    for i in range(3):
        waiting.add(i, "dear")
        waiting.add(10 + i, "cheap")
    assert waiting.serve(2.0) == 0
    assert [waiting.serve(1.0) for _ in range(4)] == [10, 11, 1, 12]


def test_a_group_that_comes_late_gets_no_credit_for_the_past() -> None:
    waiting = Waiting()
    for i in range(9):
        waiting.add(i, "first")
    for _ in range(5):
        waiting.serve(10.0)
    for i in range(3):
        waiting.add(20 + i, "late")
    assert waiting.serve_all(10.0) == [20, 5, 21, 6, 22, 7, 8]


def test_a_group_that_leaves_is_still_charged_when_it_comes_again() -> None:
    waiting = Waiting()
    for i in range(4):
        waiting.add(i, "stays")
    waiting.add(10, "leaves")
    assert waiting.serve(1.0) == 0
    assert waiting.serve(3.0) == 10
    waiting.add(11, "leaves")
    assert waiting.serve_all() == [1, 2, 11, 3]


def test_charges_of_those_who_left_are_forgotten_past_the_limit() -> None:
    waiting = Waiting(max_debts=2)
    for i in range(20):
        waiting.add(i, "stays")
    for i in range(50):
        waiting.add(100 + i, f"{i}")
        while waiting.serve(1.0) < 100:
            waiting.add(200 + i, "stays")
        assert len(waiting.turns._debts) <= 2


def test_who_leaves_the_queue_gets_no_turn() -> None:
    waiting = Waiting()
    first, second = waiting.add(1, "a"), waiting.add(2, "b")
    waiting.add(3, "a")
    assert waiting.turns.has("a")
    assert waiting.turns.has("b")
    assert not waiting.turns.has("c")
    waiting.discard(first)
    waiting.discard(second)
    assert not waiting.turns.has("b")
    assert waiting.serve_all() == [3]
    assert not waiting.turns.has("a")


def test_in_a_group_the_senior_goes_first_and_of_equals_the_first_to_come() -> None:
    waiting = Waiting()
    for request_id, seniority in enumerate([5.0, 7.0, 5.0, 1.0]):
        waiting.add(request_id, "a", seniority)
    assert waiting.serve_all() == [3, 0, 2, 1]


def test_a_group_does_not_keep_those_who_left() -> None:
    ids: set[int] = set()
    group = BySeniority(ids)
    assert group.head is None
    for i in range(10_000):
        live = live_request(i)
        ids.add(i)
        group.append(live)
        ids.remove(i)
        assert len(group._heap) <= 64
    assert group.head is None

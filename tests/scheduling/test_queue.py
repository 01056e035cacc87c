"""The waiting queue: whose turn it is, its limits, and what it tells who is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_requests import live_request

from pybatcher.errors import QueueFullError
from pybatcher.scheduling.queue import WaitingQueue
from pybatcher.scheduling.request import LiveRequest


def served(queue: WaitingQueue, now: float = 0.0) -> list[int]:
    """Everybody, in the order of their turns."""
    order = []
    while (live := queue.head) is not None:
        queue.admit(live, now)
        order.append(live.request.request_id)
    return order


def test_first_in_first_out_with_leaving_in_between() -> None:
    queue = WaitingQueue(10, 100, 0)
    lives = [live_request(i, 2, submitted=float(i)) for i in range(4)]
    for live in lives:
        queue.append(live)
    queue.discard(lives[2])
    queue.discard(lives[0])
    assert queue.waiting_since == 1.0
    assert list(queue) == [lives[1], lives[3]]
    assert (len(queue), queue.tokens) == (2, 4)
    assert served(queue) == [1, 3]
    assert (len(queue), queue.tokens, queue.waiting_since, queue.head) == (0, 0, None, None)


def test_seniority_goes_before_arrival_and_ties_are_first_come() -> None:
    queue = WaitingQueue(10, 100, 0)
    for request_id, seniority in enumerate([5.0, 7.0, 5.0, 1.0]):
        queue.append(live_request(request_id, seniority=seniority))
    assert served(queue) == [3, 0, 2, 1]


def test_a_namespace_with_a_thousand_does_not_delay_anothers_first() -> None:
    queue = WaitingQueue(10_000, 100_000, 0)
    for request_id in range(1000):
        queue.append(live_request(request_id, 5, namespace="loud"))
    for _ in range(10):
        head = queue.head
        assert head is not None
        queue.admit(head, 0.0)
    queue.append(live_request(5000, 5, namespace="quiet"))
    queue.append(live_request(5001, 5, namespace="quiet"))
    order = served(queue)
    assert order.index(5000) <= 1
    assert order.index(5001) <= 3


@pytest.mark.parametrize("n_namespaces", [1, 1000])
def test_a_tenant_with_a_thousand_does_not_delay_anothers_first(n_namespaces: int) -> None:
    """However many namespaces it has: they take turns among themselves."""
    queue = WaitingQueue(10_000, 100_000, 0)
    for request_id in range(1000):
        namespace = str(request_id % n_namespaces)
        queue.append(live_request(request_id, 5, tenant="loud", namespace=namespace))
    for _ in range(10):
        head = queue.head
        assert head is not None
        queue.admit(head, 0.0)
    queue.append(live_request(5000, 5, tenant="quiet"))
    queue.append(live_request(5001, 5, tenant="quiet"))
    order = served(queue)
    assert order.index(5000) <= 1
    assert order.index(5001) <= 3


def test_namespaces_of_a_tenant_take_turns_in_its_share() -> None:
    queue = WaitingQueue(1000, 100_000, 0)
    for i in range(30):
        queue.append(live_request(i, 5, tenant="a", namespace="loud"))
        queue.append(live_request(100 + i, 5, tenant="b"))
    for i in range(5):
        queue.append(live_request(50 + i, 5, tenant="a", namespace="quiet"))
    order = served(queue)[:20]
    assert sum(request_id >= 100 for request_id in order) == 10
    assert [request_id for request_id in order if 50 <= request_id < 100] == [50, 51, 52, 53, 54]


def test_the_parts_of_a_tenant_take_turns_in_its_share() -> None:
    queue = WaitingQueue(1000, 100_000, 0)
    for i in range(40):
        queue.append(live_request(i, 5, tenant="a\nloud"))
        queue.append(live_request(100 + i, 5, tenant="b"))
        queue.append(live_request(200 + i, 5, tenant=f"a\nquiet {i % 4}"))
    order = served(queue)[:40]
    assert sum(100 <= request_id < 200 for request_id in order) == 20
    assert sum(request_id < 100 for request_id in order) == 4, "one of five parts"


def test_a_tenant_of_whom_nobody_waits_finds_room_where_others_have_used_it_up() -> None:
    queue = WaitingQueue(4, 40, 0)
    for i in range(4):
        queue.append(live_request(i, 10, tenant="loud"))
    for tenant in ("loud", ""):
        with pytest.raises(QueueFullError):
            queue.check_room(1, tenant)
    for i in range(4):
        queue.check_room(100, f"quiet {i}")
        queue.append(live_request(10 + i, 10, tenant=f"quiet {i}"))
        with pytest.raises(QueueFullError):
            queue.check_room(1, f"quiet {i}")
    with pytest.raises(QueueFullError):
        queue.check_room(1, "one too many")


def test_namespaces_share_by_tokens_and_not_by_requests() -> None:
    queue = WaitingQueue(10_000, 100_000, 0)
    for request_id in range(100):
        queue.append(live_request(request_id, 1, namespace="short"))
        queue.append(live_request(1000 + request_id, 10, namespace="long"))
    first = served(queue)[:55]
    assert 45 <= sum(request_id < 1000 for request_id in first) <= 51


def test_who_leaves_and_comes_again_does_not_get_another_first_turn() -> None:
    queue = WaitingQueue(100, 1000, 0)
    for request_id in range(8):
        queue.append(live_request(request_id, 5, namespace="steady"))
    order = []
    for turn in range(8):
        queue.append(live_request(100 + turn, 20, namespace="again"))
        for _ in range(2):
            head = queue.head
            assert head is not None
            queue.admit(head, 0.0)
            order.append(head.request.request_id)
            if head.request.request_id >= 100:
                break
    assert sum(request_id < 100 for request_id in order) >= 6


def test_who_was_there_before_goes_before_all_others_by_seniority() -> None:
    queue = WaitingQueue(10, 100, 0)
    queue.append(live_request(0, seniority=-5.0))
    queue.come_back(live_request(7, seniority=3.0))
    queue.come_back(live_request(8, seniority=2.0))
    assert [live.request.request_id for live in queue.returned] == [8, 7]
    assert served(queue) == [8, 7, 0]


def test_queue_full_by_requests() -> None:
    queue = WaitingQueue(2, 100, 0)
    queue.append(live_request(0))
    queue.append(live_request(1))
    with pytest.raises(QueueFullError, match=r"max_queue_requests is 2 .* make it 3"):
        queue.check_room(1)
    queue.come_back(live_request(2))
    assert len(queue) == 3, "who comes back has its place"


def test_queue_full_by_tokens_but_a_lone_request_may_always_wait() -> None:
    queue = WaitingQueue(10, 100, 0)
    queue.check_room(150)
    live = live_request(0, 150)
    queue.append(live)
    with pytest.raises(QueueFullError, match=r"max_queue_tokens is 100 .* make it 151"):
        queue.check_room(1)
    queue.discard(live)
    queue.append(live_request(2, 60))
    queue.check_room(40)


def test_retry_after_follows_the_pace_of_admission() -> None:
    queue = WaitingQueue(4, 10_000, 0)

    def retry_after() -> float:
        with pytest.raises(QueueFullError) as caught:
            queue.check_room(1)
        return caught.value.retry_after

    def admit(now: float) -> None:
        assert queue.head is not None
        queue.admit(queue.head, now)

    for request_id in range(4):
        queue.append(live_request(request_id))
    unknown_pace = retry_after()
    assert unknown_pace > 0
    for at in range(4):
        admit(10.0 * at)
    for request_id in range(4):
        queue.append(live_request(request_id))
    assert retry_after() == pytest.approx(10.0 * 5 / 2)
    for at in range(32):
        admit(100.0 + 0.1 * at)
        queue.append(live_request(100 + at))
    assert retry_after() == pytest.approx(0.1 * 5 / 2)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["append", "append", "admit", "remove", "come_back"]),
            st.sampled_from(["", "a", "b"]),
            st.sampled_from(["", "x"]),
            st.floats(0.0, 10.0),
            st.integers(1, 30),
            st.integers(0, 100),
        ),
        max_size=60,
    )
)
def test_nobody_is_lost_and_the_senior_of_a_namespace_goes_first(
    operations: list[tuple[str, str, str, float, int, int]],
) -> None:
    queue = WaitingQueue(1000, 100_000, 4)
    there: list[LiveRequest] = []
    for number, (what, namespace, tenant, seniority, n_tokens, which) in enumerate(operations):
        live = live_request(
            number, n_tokens, namespace=namespace, tenant=tenant, seniority=seniority
        )
        if what == "append":
            queue.append(live)
            there.append(live)
        elif what == "come_back":
            queue.come_back(live)
            there.append(live)
        elif there and what == "remove":
            queue.discard(there.pop(which % len(there)))
        elif there:
            head = queue.head
            assert head is not None
            returned = list(queue.returned)
            rivals = returned or [
                other
                for other in there
                if (other.request.tenant, other.request.namespace)
                == (head.request.tenant, head.request.namespace)
            ]
            assert head is min(rivals, key=lambda other: (other.seniority, other.number))
            queue.admit(head, float(number))
            there.remove(head)
        assert sorted(other.number for other in queue) == sorted(other.number for other in there)
        assert len(queue) == len(there)
    assert len(served(queue)) == len(there)

"""The waiting queue: its limits, its deadlines, and what it tells who is refused."""

from __future__ import annotations

import pytest

from pybatcher.errors import QueueFullError
from pybatcher.scheduling import Request
from pybatcher.scheduling.queue import WaitingQueue


def request(request_id: int, n_tokens: int = 1, deadline: float | None = None) -> Request:
    return Request(request_id=request_id, prompt=(0,) * n_tokens, deadline=deadline)


def test_first_in_first_out_with_leaving_in_between() -> None:
    queue = WaitingQueue(10, 100)
    for request_id in range(4):
        queue.append(request(request_id, 2), now=float(request_id))
    assert 2 in queue
    queue.remove(2)
    queue.remove(0)
    assert queue.waiting_since == 1.0
    assert [item.request_id for item in queue.requests] == [1, 3]
    assert queue.tokens == 4
    assert queue.admit_head(5.0).request_id == 1
    assert queue.admit_head(5.0).request_id == 3
    assert queue.head is None
    assert (len(queue), queue.tokens, queue.waiting_since) == (0, 0, None)


def test_queue_full_by_requests() -> None:
    queue = WaitingQueue(2, 100)
    queue.append(request(0), 0.0)
    queue.append(request(1), 0.0)
    with pytest.raises(QueueFullError, match=r"max_queue_requests is 2 .* make it 3"):
        queue.append(request(2), 0.0)
    assert len(queue) == 2


def test_queue_full_by_tokens_but_a_lone_request_may_always_wait() -> None:
    queue = WaitingQueue(10, 100)
    queue.append(request(0, 150), 0.0)
    with pytest.raises(QueueFullError, match=r"max_queue_tokens is 100 .* make it 151"):
        queue.append(request(1, 1), 0.0)
    queue.remove(0)
    queue.append(request(2, 60), 0.0)
    queue.append(request(3, 40), 0.0)
    assert queue.tokens == 100


def test_retry_after_follows_the_pace_of_admission() -> None:
    queue = WaitingQueue(4, 10_000)

    def retry_after() -> float:
        with pytest.raises(QueueFullError) as caught:
            queue.append(request(99), 0.0)
        return caught.value.retry_after

    for request_id in range(4):
        queue.append(request(request_id), 0.0)
    unknown_pace = retry_after()
    assert unknown_pace > 0
    for at in range(4):
        queue.admit_head(now=10.0 * at)
    for request_id in range(4):
        queue.append(request(request_id), 0.0)
    assert retry_after() == pytest.approx(10.0 * 5 / 2)
    for at in range(32):
        queue.admit_head(now=100.0 + 0.1 * at)
        queue.append(request(100 + at), 0.0)
    assert retry_after() == pytest.approx(0.1 * 5 / 2)


def test_deadlines_of_those_who_left_do_not_count() -> None:
    queue = WaitingQueue(10, 100)
    queue.append(request(0, deadline=1.0), 0.0)
    queue.append(request(1, deadline=3.0), 0.0)
    queue.append(request(2, deadline=2.0), 0.0)
    queue.append(request(3), 0.0)
    queue.remove(0)
    assert queue.next_deadline == 2.0
    assert queue.expired(1.9) == []
    assert queue.expired(2.0) == [2]
    queue.remove(2)
    assert queue.next_deadline == 3.0
    assert queue.expired(99.0) == [1]
    assert queue.next_deadline is None

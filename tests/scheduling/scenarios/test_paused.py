"""Requests that nobody reads wait for all others, hold no KV, and draw the same tokens."""

from __future__ import annotations

import random
from typing import Any

import pytest
from scheduler_driver import Driver, numbers

from pybatcher.errors import QueueFullError
from pybatcher.scheduling import Expired, Failed, Generated

PROMPT = tuple(range(1, 40))


def tokens_of(driver: Driver, request_id: int) -> list[int]:
    return [
        event.token.token_id
        for event in driver.events
        if isinstance(event, Generated) and event.request_id == request_id
    ]


def alone(prompt: tuple[int, ...] = PROMPT, **fields: Any) -> list[int]:
    driver = Driver()
    driver.submit(1, prompt, **fields)
    driver.run()
    return tokens_of(driver, 1)


def rows(driver: Driver, n_last: int) -> list[int]:
    return [sum(len(entry.tokens) for entry in plan.entries) for plan in driver.plans[-n_last:]]


def run(driver: Driver) -> None:
    """Run to the end of all, in time where only unread requests are left."""
    while driver.step() or driver.scheduler.resumes_at is not None:
        if (at := driver.scheduler.resumes_at) is not None:
            driver.clock.advance(max(0.0, at - driver.clock()))
    driver.check_nothing_held()
    table = driver.scheduler._table
    assert not table.paused
    assert not table.parked


def test_what_nobody_reads_has_no_rows_beside_others_and_the_same_tokens() -> None:
    driver = Driver()
    for request_id in (1, 2, 3):
        driver.submit(request_id, PROMPT[request_id:], max_tokens=20, temperature=1.0, seed=5)
    driver.submit(4, PROMPT, max_tokens=60)
    for _ in range(5):
        driver.step()
    assert rows(driver, 1) == [4]
    driver.scheduler.pause([1, 2, 3], True)
    used = driver.engine.used_sequences
    for _ in range(10):
        driver.step()
    assert rows(driver, 10) == [1] * 10
    assert driver.engine.used_sequences == used - 3
    counts = driver.scheduler.statistics()
    assert (counts.running, counts.queued, counts.preemptions) == (1, 3, 0)
    driver.scheduler.pause([2], False)
    driver.step()
    assert {entry.seq_id for entry in driver.plans[-1].entries} > {
        driver.plans[-2].entries[0].seq_id
    }
    driver.step()
    assert rows(driver, 1) == [2]
    run(driver)
    for request_id in (1, 2, 3):
        made = alone(PROMPT[request_id:], max_tokens=20, temperature=1.0, seed=5)
        assert tokens_of(driver, request_id) == made
    assert driver.scheduler.statistics().completed == 4


def test_alone_it_goes_on_as_if_it_were_read() -> None:
    driver = Driver()
    driver.submit(1, PROMPT, max_tokens=30)
    driver.step()
    driver.scheduler.pause([1], True)
    driver.run()
    assert tokens_of(driver, 1) == alone(max_tokens=30)
    assert len(driver.plans) == 30


def test_it_waits_some_time_after_the_last_of_the_others() -> None:
    driver = Driver()
    driver.submit(1, PROMPT, max_tokens=8)
    driver.submit(2, PROMPT[5:], max_tokens=8)
    driver.step()
    driver.scheduler.pause([1], True)
    assert driver.scheduler.resumes_at is None
    while driver.scheduler.statistics().running:
        driver.step()
    assert driver.scheduler.is_idle
    assert not driver.step()
    at = driver.scheduler.resumes_at
    assert at == pytest.approx(driver.clock() + 0.1)
    driver.submit(3, PROMPT[9:], max_tokens=8)  # the same client's next request
    assert driver.scheduler.resumes_at is None
    driver.step()
    driver.step()
    assert rows(driver, 1) == [1]
    run(driver)
    assert tokens_of(driver, 1) == alone(max_tokens=8)


def test_one_that_still_waits_loses_and_finds_its_turn() -> None:
    driver = Driver(n_parallel=1)
    driver.submit(1, PROMPT, max_tokens=4)
    driver.submit(2, PROMPT[1:], max_tokens=4)
    driver.submit(3, PROMPT[2:], max_tokens=4)
    driver.step()
    driver.scheduler.pause([2], True)
    while not tokens_of(driver, 3):
        driver.step()
    assert not tokens_of(driver, 2)
    for _ in range(300):  # however often: memory is that of the requests
        driver.scheduler.pause([2], False)
        driver.scheduler.pause([2], True)
        driver.scheduler._table.park_paused(driver.clock())
    driver.scheduler.pause([2], False)
    run(driver)
    assert tokens_of(driver, 2) == alone(PROMPT[1:], max_tokens=4)
    turns = driver.scheduler._table.waiting._turns
    assert not turns._shares or turns.head is None


def test_whoever_changes_its_mind_all_the_time_starves_no_newcomer() -> None:
    # Eight that ran once, and hold no place, for ever: they are more than run at a time.
    driver = Driver(n_ctx=256, n_parallel=2)
    flipping = range(1, 9)
    for request_id in flipping:
        prompt = (request_id, *PROMPT, *PROMPT[1:20])
        driver.submit(request_id, prompt, max_tokens=60)
        while not tokens_of(driver, request_id):
            driver.step()
        driver.submit(90 + request_id, PROMPT, max_tokens=1)
        driver.scheduler.pause([request_id], True)
        driver.step()
    while driver.scheduler.statistics().running or driver.scheduler.n_waiting:
        driver.step()
    driver.scheduler.pause(flipping, False)
    driver.submit(100, PROMPT, max_tokens=2)
    driver.submit(101, PROMPT, max_tokens=2)
    for i in range(20):
        for half in (flipping[:4], flipping[4:]):
            driver.scheduler.pause(half, (half[0] == 1) == (i % 2 == 0))
        driver.step()
    assert len(tokens_of(driver, 101)) == 2
    driver.scheduler.pause(flipping, False)
    run(driver)


def test_those_that_come_back_take_no_places_of_newcomers() -> None:
    driver = Driver(n_parallel=1, max_queue_requests=2)
    driver.submit(1, PROMPT, max_tokens=30)
    driver.step()
    for request_id in range(2, 12):  # parked as soon as they wait
        driver.submit(request_id, PROMPT, max_tokens=2)
        driver.scheduler.pause([request_id], True)
        driver.step()
    driver.scheduler.pause(range(2, 12), False)
    driver.submit(20, PROMPT, max_tokens=2)
    driver.submit(21, PROMPT, max_tokens=2)
    with pytest.raises(QueueFullError):
        driver.submit(22, PROMPT, max_tokens=2)
    assert driver.scheduler.statistics().queued_tokens == 2 * len(PROMPT)
    run(driver)
    assert driver.scheduler.statistics().queued_tokens == 0
    assert driver.scheduler.statistics().completed == 13


def test_it_ends_in_every_state() -> None:
    driver = Driver(n_parallel=2)
    driver.submit(1, PROMPT, max_tokens=50)
    for request_id in (2, 3, 4):
        deadline = driver.clock() + 0.2 if request_id == 4 else None
        driver.submit(request_id, PROMPT[request_id:], max_tokens=50, deadline=deadline)
    for _ in range(3):
        driver.step()
    driver.scheduler.pause([2, 3, 4, 99], True)
    driver.step()
    assert driver.scheduler.cancel(2)
    assert driver.scheduler.fail(3)
    run(driver)
    assert Expired(4) in driver.events
    assert driver.scheduler.statistics().completed == 1


def test_the_failure_of_a_step_changes_nothing() -> None:
    driver = Driver()
    for request_id in (1, 2):
        driver.submit(request_id, PROMPT[request_id:], max_tokens=12)
    driver.step()
    driver.scheduler.pause([1], True)
    driver.step()
    driver.step(fails=lambda _: True)
    run(driver)
    for request_id in (1, 2):
        assert tokens_of(driver, request_id) == alone(PROMPT[request_id:], max_tokens=12)


def with_one_aside(**config: Any) -> Driver:
    """Return a driver in which request 1, which takes 10 of 16 blocks, is parked; 2 runs."""
    driver = Driver(n_ctx=256, max_prefixes=2, **config)
    driver.submit(1, numbers(99), max_tokens=60)
    for _ in range(3):
        driver.step()
    driver.scheduler.pause([1], True)
    driver.submit(2, PROMPT, max_tokens=3)
    driver.step()
    return driver


@pytest.mark.parametrize("then", ["nothing", "it is read again", "another comes"])
def test_a_shared_prefix_without_room_beside_one_that_is_aside_waits_for_it(then: str) -> None:
    driver = with_one_aside()
    prefix = driver.scheduler.add_prefix(numbers(120, 5))
    if then == "it is read again":
        driver.step()
        driver.scheduler.pause([1], False)
    if then == "another comes":
        driver.submit(3, PROMPT, max_tokens=3)
    while driver.step():
        pass
    assert prefix.num_tokens_to_compute == 0
    assert driver.output(1) == alone(numbers(99), max_tokens=60)
    assert driver.endings(2) == ["length"]
    assert driver.endings(3) == (["length"] if then == "another comes" else [])
    driver.scheduler.drop_prefixes()
    run(driver)


def test_a_shared_prefix_with_room_beside_one_that_is_aside_does_not_wake_it() -> None:
    driver = with_one_aside()
    prefix = driver.scheduler.add_prefix(numbers(40, 5))
    while driver.step():
        pass
    assert prefix.num_tokens_to_compute == 0
    assert driver.endings(1) == []
    driver.scheduler.drop_prefixes()
    run(driver)


def test_a_suspect_runs_alone_though_nobody_reads_it() -> None:
    driver = Driver(n_batch=8)
    driver.submit(1, PROMPT, max_tokens=20)
    driver.submit(2, numbers(39, 100), max_tokens=20)
    for _ in range(12):
        driver.step()
    driver.step(fails=lambda _: True)
    driver.scheduler.pause([1], True)
    while driver.step():
        assert len(driver.plans) < 100, "its rows are computed again and again"
    run(driver)
    assert [driver.endings(i) for i in (1, 2)] == [["length"]] * 2


@pytest.mark.parametrize("seed", range(20))
def test_in_any_order_of_events_tokens_are_the_same_and_no_step_has_both(seed: int) -> None:
    choose = random.Random(seed)
    driver = Driver(n_ctx=256, n_parallel=3, max_num_partial_prefills=2)
    asked = {}
    for request_id in range(8):
        prompt = PROMPT[choose.randrange(3) : choose.randrange(20, 39)]
        asked[request_id] = (prompt, {"max_tokens": choose.randrange(1, 40), "temperature": 1.0})
        driver.submit(request_id, prompt, seed=request_id, **asked[request_id][1])
    table = driver.scheduler._table

    def check() -> None:
        owners = [owner for owner, _ in driver.scheduler._in_flight or []]
        assert len({owner.request.request_id in table.paused for owner in owners}) <= 1

    for _ in range(120):
        chosen = [i for i in range(8) if choose.random() < 0.3]
        driver.scheduler.pause(chosen, choose.random() < 0.6)
        broken = choose.random() < 0.02
        driver.step(during=check, fails=lambda _, broken=broken: broken)
        driver.clock.advance(choose.random() * 0.1)
    driver.scheduler.pause(range(8), False)
    run(driver)
    for request_id, (prompt, fields) in asked.items():
        made, expected = tokens_of(driver, request_id), alone(prompt, seed=request_id, **fields)
        failed = any(
            isinstance(one, Failed) for one in driver.events if one.request_id == request_id
        )
        assert made == (expected[: len(made)] if failed else expected)

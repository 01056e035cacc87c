"""What the scheduler does at each end of a request, and what it refuses."""

from __future__ import annotations

import pytest
from scheduler_driver import Driver, numbers

from pybatcher.errors import (
    BatcherClosedError,
    EngineFailedError,
    InvalidRequestError,
    NoFreeSequenceError,
    RequestTooLongError,
)
from pybatcher.scheduling import Expired, Failed, StepResult


def test_an_empty_scheduler_has_nothing_to_plan() -> None:
    driver = Driver()
    assert driver.scheduler.plan(0.0) is None
    assert driver.scheduler.is_idle
    assert driver.scheduler.waiting_since is None


def test_end_token_ends_with_reason_stop_and_is_part_of_the_tokens() -> None:
    driver = Driver()
    driver.submit(0, numbers(5), max_tokens=5)
    driver.run()
    end = driver.output(0)[2]
    driver.submit(1, numbers(5), max_tokens=5, end_token_ids=frozenset({end}))
    driver.run()
    assert driver.endings(1) == ["stop"]
    assert driver.output(1) == driver.output(0)[:3]


def test_min_tokens_is_told_to_the_engine() -> None:
    driver = Driver()
    everything_but_one = frozenset(range(257))
    driver.submit(0, numbers(5), max_tokens=9, min_tokens=4, end_token_ids=everything_but_one)
    driver.run()
    assert driver.output(0)[:4] == [257] * 4


def test_cancel_while_waiting() -> None:
    driver = Driver(n_parallel=1)
    driver.submit(0, numbers(5), max_tokens=5)
    driver.submit(1, numbers(5), max_tokens=5)
    driver.step()
    assert driver.scheduler.cancel(1)
    assert not driver.scheduler.cancel(1)
    driver.run()
    assert driver.admitted() == [0]
    assert driver.scheduler.statistics().cancelled == 1


@pytest.mark.parametrize("steps_before", [1, 4], ids=["mid-prefill", "mid-decode"])
@pytest.mark.parametrize("during_step", [False, True])
def test_cancel_frees_kv_by_the_next_step_boundary(steps_before: int, during_step: bool) -> None:
    driver = Driver(n_batch=40)
    driver.submit(0, numbers(100), max_tokens=50)
    for _ in range(steps_before):
        driver.step()
    if during_step:
        driver.step(during=lambda: _assert(driver.scheduler.cancel(0)))
    else:
        assert driver.scheduler.cancel(0)
    driver.check_nothing_held()
    assert driver.scheduler.is_idle
    assert driver.endings(0) == []


def test_cancel_during_a_step_that_has_no_row_for_it() -> None:
    driver = Driver(n_batch=8)
    driver.submit(0, numbers(20), max_tokens=5)
    driver.submit(1, numbers(4, 1), max_tokens=5)
    driver.step()
    driver.step()
    driver.step()  # 4 tokens of the first prompt, 4 of the second
    driver.submit(2, numbers(30, 2), max_tokens=5)
    driver.step()
    driver.submit(3, numbers(30, 3), max_tokens=5)
    driver.step(during=lambda: _assert(driver.scheduler.cancel(3) and driver.scheduler.cancel(2)))
    driver.run()
    driver.check_nothing_held()


def test_a_token_drawn_for_who_cancelled_meanwhile_is_told_to_nobody() -> None:
    driver = Driver()
    driver.submit(0, numbers(5), max_tokens=5)
    driver.step()
    driver.step(during=lambda: _assert(driver.scheduler.cancel(0)))
    assert len(driver.output(0)) == 1
    assert not driver.scheduler.cancel(0)


def test_finish_counts_as_completed_and_fail_as_failed() -> None:
    driver = Driver()
    driver.submit(0, numbers(5), max_tokens=5)
    driver.submit(1, numbers(5), max_tokens=5)
    driver.step()
    assert driver.scheduler.finish(0)
    assert driver.scheduler.fail(1)
    assert not driver.scheduler.finish(0)
    counts = driver.scheduler.statistics()
    assert (counts.completed, counts.failed, counts.cancelled) == (1, 1, 0)
    driver.check_nothing_held()


def test_expired_while_waiting_is_never_prefilled() -> None:
    driver = Driver(n_parallel=1)
    driver.submit(0, numbers(5), max_tokens=10)
    driver.submit(1, numbers(50), max_tokens=10, deadline=0.05)
    assert driver.scheduler.next_deadline == 0.05
    driver.run()
    assert driver.endings(1) == ["expired"]
    assert driver.scheduler.next_deadline is None
    assert driver.scheduler.statistics().prompt_tokens == 5


def test_a_deadline_ends_a_running_request_too() -> None:
    driver = Driver(n_batch=10)
    driver.submit(0, numbers(5), max_tokens=100, deadline=0.045)
    driver.submit(1, numbers(80), max_tokens=100, deadline=0.035)
    driver.run()
    assert driver.endings(0) == driver.endings(1) == ["expired"]
    assert len(driver.output(0)) == 5
    assert driver.output(1) == []
    driver.check_nothing_held()


def test_an_expired_head_lets_the_next_one_in() -> None:
    driver = Driver(n_ctx=64, block_size=16)
    driver.submit(0, numbers(5), max_tokens=20)  # 2 blocks of 4
    driver.submit(1, numbers(5), max_tokens=44, deadline=0.025)  # 3 blocks: has to wait
    driver.submit(2, numbers(5, 1), max_tokens=5)
    driver.step()
    assert driver.admitted() == [0]
    while driver.step():
        if 2 in driver.admitted():
            break
    assert driver.admitted() == [0, 2]
    assert Expired(1) in driver.events
    assert not driver.endings(0)


def test_a_failed_sequence_harms_only_its_request() -> None:
    driver = Driver()
    driver.submit(0, numbers(5), max_tokens=5)
    driver.submit(1, numbers(6), max_tokens=5)
    driver.step()
    victim = driver.plans[0].entries[0].seq_id
    driver.engine.fail_sequences = lambda plan: {victim: "its logits are not finite"}
    driver.step()
    driver.engine.fail_sequences = None
    driver.run()
    assert driver.endings(0) == ["failed"]
    assert driver.endings(1) == ["length"]
    errors = [event.error for event in driver.events if isinstance(event, Failed)]
    assert [type(error) for error in errors] == [EngineFailedError]
    assert "its logits are not finite" in str(errors[0])


def test_parameters_that_the_engine_refuses_harm_only_their_request() -> None:
    driver = Driver()
    for request_id in range(3):
        driver.submit(
            request_id, numbers(5, request_id), max_tokens=3, end_token_ids=frozenset({1000})
        )
    driver.submit(3, numbers(5), max_tokens=3)
    driver.run()
    assert [driver.endings(request_id) for request_id in range(4)] == [["failed"]] * 3 + [
        ["length"]
    ]
    assert driver.scheduler.statistics().failed == 3
    driver.check_nothing_held()


def test_a_token_that_never_came_is_a_failure() -> None:
    driver = Driver()
    driver.submit(0, numbers(5), max_tokens=5)
    assert driver.scheduler.plan(0.0) is not None
    events = driver.scheduler.apply(StepResult({}), 0.0)
    assert [type(event) for event in events if isinstance(event, Failed)] == [Failed]
    assert driver.scheduler.is_idle


def test_fail_all_ends_everybody_once_each_with_an_error_of_its_own() -> None:
    driver = Driver(n_parallel=2)
    for request_id in range(4):
        driver.submit(request_id, numbers(5), max_tokens=5)
    driver.step()
    cause = ValueError("why")
    error = BatcherClosedError("closing")
    error.__cause__ = cause
    events = driver.scheduler.fail_all(error)
    assert [event.request_id for event in events] == [0, 1, 2, 3]
    errors = [event.error for event in events if isinstance(event, Failed)]
    assert len({id(own) for own in errors}) == 4
    assert all(type(own) is BatcherClosedError and own.__cause__ is cause for own in errors)
    assert driver.scheduler.fail_all(error) == []
    driver.check_nothing_held()


def test_fail_all_during_a_step_frees_when_it_ends() -> None:
    driver = Driver()
    driver.submit(0, numbers(5), max_tokens=5)
    plan = driver.scheduler.plan(0.0)
    assert plan is not None
    assert len(driver.scheduler.fail_all(BatcherClosedError("closing"))) == 2  # Admitted, Failed
    assert driver.engine.used_sequences == 1
    assert driver.scheduler.apply(driver.engine.step(plan), 0.0) == []
    driver.check_nothing_held()


def test_plan_and_apply_alternate() -> None:
    driver = Driver()
    with pytest.raises(RuntimeError, match="without a planned step"):
        driver.scheduler.apply(StepResult({}), 0.0)
    driver.submit(0, numbers(5), max_tokens=2)
    driver.scheduler.plan(0.0)
    with pytest.raises(RuntimeError, match="before the last step was applied"):
        driver.scheduler.plan(0.0)


def test_first_come_first_served_even_where_a_later_one_would_fit() -> None:
    driver = Driver(n_ctx=64, block_size=16)
    driver.submit(0, numbers(5), max_tokens=20)
    driver.submit(1, numbers(5), max_tokens=44)
    driver.submit(2, numbers(5, 1), max_tokens=5)
    driver.run()
    assert driver.admitted() == [0, 1, 2]


def test_no_more_run_than_a_step_has_rows() -> None:
    driver = Driver(n_parallel=8, n_batch=3)
    for request_id in range(6):
        driver.submit(request_id, numbers(2, request_id), max_tokens=4)
    driver.run()
    assert max(plan.decode_rows for plan in driver.plans) == 3
    assert [driver.endings(request_id) for request_id in range(6)] == [["length"]] * 6


def test_shared_prefix_is_computed_once_however_often_it_is_asked_for() -> None:
    driver = Driver(max_prefixes=2)
    driver.scheduler.add_prefix(numbers(40))
    driver.scheduler.add_prefix(numbers(40))
    with pytest.raises(InvalidRequestError, match="has no tokens"):
        driver.scheduler.add_prefix(())
    assert not driver.scheduler.is_idle
    driver.run()
    assert driver.engine.statistics()["computed_tokens"] == 40
    assert driver.engine.used_sequences == 1
    driver.scheduler.drop_prefixes()
    driver.check_nothing_held()


def test_shared_prefix_helps_prompts_that_have_only_some_of_it() -> None:
    driver = Driver(max_prefixes=1)
    driver.scheduler.add_prefix(numbers(40))
    driver.submit(0, (*numbers(23), 251, 252), max_tokens=1)
    driver.submit(1, numbers(40), max_tokens=1)
    driver.submit(2, (255, *numbers(40)), max_tokens=1)
    driver.run()
    assert [driver.cached_tokens(request_id) for request_id in range(3)] == [23, 39, 0]


def test_the_prefix_cache_wins_where_it_has_more_than_the_shared_prefix() -> None:
    driver = Driver(max_prefixes=1, block_size=16)
    driver.scheduler.add_prefix(numbers(20))
    driver.submit(0, numbers(70), max_tokens=1)
    driver.run()
    driver.submit(1, numbers(70), max_tokens=1)
    driver.run()
    assert [driver.cached_tokens(request_id) for request_id in range(2)] == [20, 64]


def test_shared_prefix_stays_in_its_namespace() -> None:
    driver = Driver(max_prefixes=1)
    driver.scheduler.add_prefix(numbers(40))
    driver.submit(0, numbers(50), max_tokens=1, namespace="tenant")
    driver.run()
    assert driver.cached_tokens(0) == 0


def test_shared_prefix_waits_for_kv_that_is_promised_and_nobody_passes_it() -> None:
    driver = Driver(n_ctx=64, block_size=16, max_prefixes=1)
    driver.submit(0, numbers(5), max_tokens=40)  # 3 blocks of 4
    driver.step()
    driver.scheduler.add_prefix(numbers(30, 9))  # 2 blocks
    driver.submit(1, numbers(5, 3), max_tokens=3)
    driver.step()
    assert driver.admitted() == [0]
    driver.run()
    assert driver.admitted() == [0, 1]
    assert driver.endings(0) == driver.endings(1) == ["length"]


def test_a_shared_prefix_refuses_those_who_waited_and_fit_no_more() -> None:
    driver = Driver(n_ctx=64, block_size=16, n_parallel=2, max_prefixes=1)
    driver.submit(0, numbers(5), max_tokens=5)
    driver.submit(1, numbers(5), max_tokens=50)
    driver.step()
    driver.scheduler.add_prefix(numbers(30, 9))
    driver.run()
    assert driver.endings(0) == ["length"]
    errors = [event.error for event in driver.events if isinstance(event, Failed)]
    assert [type(error) for error in errors] == [RequestTooLongError]


def test_shared_blocks_do_not_count_against_who_shares_them() -> None:
    driver = Driver(n_ctx=64, block_size=16, max_prefixes=1)
    driver.scheduler.add_prefix(numbers(32))
    driver.run()
    driver.submit(0, numbers(40), max_tokens=20)  # 4 blocks of 4, two of them the prefix's
    driver.run()
    assert driver.endings(0) == ["length"]
    with pytest.raises(RequestTooLongError, match="need 3 KV blocks"):
        driver.submit(1, (255, *numbers(32)), max_tokens=5)


def test_what_a_half_computed_prefix_will_need_is_promised_to_it() -> None:
    driver = Driver(n_ctx=96, block_size=16, n_batch=16, max_prefixes=1)
    driver.submit(0, numbers(5), max_tokens=20)  # 2 blocks of 6
    driver.step()
    driver.scheduler.add_prefix(numbers(40, 9))  # 3 blocks
    driver.submit(1, numbers(5, 3), max_tokens=20)  # 2 blocks: one too many
    while not driver.endings(0):
        driver.step()
        assert driver.admitted() == [0]
    driver.run()
    assert driver.endings(1) == ["length"]


def test_shared_prefix_that_has_no_room() -> None:
    driver = Driver(n_ctx=64, block_size=16, max_prefixes=1)
    with pytest.raises(RequestTooLongError, match="has 49 tokens; there is room for 48"):
        driver.scheduler.add_prefix(numbers(49))
    driver.scheduler.add_prefix(numbers(48))
    with pytest.raises(NoFreeSequenceError, match="all 1 shared prefixes are in use"):
        driver.scheduler.add_prefix(numbers(3))


def _assert(truth: bool) -> None:
    assert truth

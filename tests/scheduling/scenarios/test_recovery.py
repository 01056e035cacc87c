"""What becomes of requests when the engine fails and is restarted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scheduler_driver import Driver, numbers

from pybatcher.errors import EngineFailedError
from pybatcher.scheduling import Failed, StepPlan


def test_a_step_that_failed_is_planned_again_once_the_engine_is_restarted() -> None:
    driver = Driver()
    driver.submit(0, numbers(5), max_tokens=2)
    plan = driver.scheduler.plan(0.0)
    assert driver.scheduler.step_failed(OSError()) != [], "what was not taken yet"
    driver.engine.restart()
    assert driver.scheduler.plan(0.0) == plan
    driver.scheduler.cancel(0)
    driver.scheduler.step_failed(OSError())
    driver.engine.restart()
    driver.check_nothing_held()
    assert driver.scheduler.is_idle


def test_no_kv_is_touched_while_the_engine_is_restarted() -> None:
    driver = Driver(n_parallel=1)
    driver.submit(0, numbers(5), max_tokens=4)
    driver.submit(1, numbers(6), max_tokens=4)
    driver.step()
    driver.scheduler.plan(0.0)
    driver.scheduler.step_failed(OSError())
    driver.engine.close()  # from here on every call raises
    assert driver.scheduler.cancel(0)
    assert driver.scheduler.cancel(1)


def run(driver: Driver, fails: Callable[[StepPlan], bool]) -> int:
    """Until nothing is left; the steps for which `fails` raise. Returns how many did."""
    n_failures = 0
    while (plan := driver.scheduler.plan(0.0)) is not None:
        if fails(plan):
            n_failures += 1
            driver.events += driver.scheduler.step_failed(OSError("the engine is broken"))
            driver.engine.restart()
        else:
            driver.plans.append(plan)
            driver.events += driver.scheduler.apply(driver.engine.step(plan), 0.0)
        driver.engine.check_integrity()
    assert driver.scheduler.is_idle
    driver.check_nothing_held()
    return n_failures


@pytest.mark.parametrize("max_draft_tokens", [0, 4])
@pytest.mark.parametrize("when", [0, 1, 3, 7, 15])
def test_replay_comes_before_those_who_wait_and_gives_the_same_tokens(
    when: int, max_draft_tokens: int
) -> None:
    undisturbed, driver = (
        Driver(n_parallel=2, n_batch=16, vocab_size=5, max_draft_tokens=max_draft_tokens)
        for _ in range(2)
    )
    for one in (undisturbed, driver):
        for i in range(4):
            one.submit(i, (i, 2, 3) * 7, max_tokens=9, temperature=i % 2, seed=i)
    undisturbed.run()
    n_plans: list[StepPlan] = []

    def fails(plan: StepPlan) -> bool:
        n_plans.append(plan)
        return len(n_plans) == when + 1

    assert run(driver, fails) == 1
    assert driver.admitted() == [0, 1, 2, 3]
    for i in range(4):
        assert driver.output(i) == undisturbed.output(i)
        assert driver.endings(i) == ["length"]
    counts = driver.scheduler.statistics()
    assert counts.completed == 4
    assert (counts.replayed_tokens > 0) == (when > 0)


def test_suspects_are_alone_in_their_steps_until_they_are_past_the_failure() -> None:
    driver = Driver(n_parallel=3, n_batch=64)
    for i in range(3):
        driver.submit(i, numbers(20, i), max_tokens=6)
    plans: list[StepPlan] = []

    def fails(plan: StepPlan) -> bool:
        plans.append(plan)
        return len(plans) == 3

    run(driver, fails)
    assert [len(plan.entries) for plan in plans] == [3, 3, 3, 1, 1, 1, 3, 3, 3]


@pytest.mark.parametrize("poison", [0, 1, 2])
def test_who_fails_again_alone_is_the_cause(poison: int) -> None:
    driver = Driver(n_parallel=3)
    for i in range(3):
        driver.submit(i, (i + 1, *numbers(5)), max_tokens=4)
    marked = poison + 1

    def fails(plan: StepPlan) -> bool:
        return any(entry.tokens[0] == marked and len(entry.tokens) > 1 for entry in plan.entries)

    assert run(driver, fails) == 2
    endings = ["length" if i != poison else "failed" for i in range(3)]
    assert [driver.endings(i) for i in range(3)] == [[ending] for ending in endings]
    (failed,) = (event for event in driver.events if isinstance(event, Failed))
    assert isinstance(failed.error, EngineFailedError)
    assert isinstance(failed.error.__cause__, OSError)


def test_a_shared_prefix_is_computed_again() -> None:
    driver = Driver(n_parallel=4, max_prefixes=1)
    driver.scheduler.add_prefix(numbers(40))
    for i in range(2):
        driver.submit(i, (*numbers(40), i), max_tokens=6)
    plans: list[StepPlan] = []

    def fails(plan: StepPlan) -> bool:
        plans.append(plan)
        return len(plans) in (1, 4)

    while (plan := driver.scheduler.plan(0.0)) is not None:
        if fails(plan):
            driver.scheduler.step_failed(OSError())
            driver.engine.restart()
        else:
            driver.events += driver.scheduler.apply(driver.engine.step(plan), 0.0)
    lengths = [[len(entry.tokens) for entry in plan.entries] for plan in plans]
    assert lengths[:6] == [[40], [40], [1, 1], [1, 1], [40], [2]]
    assert [driver.cached_tokens(i) for i in range(2)] == [40, 40]
    driver.scheduler.drop_prefixes()
    driver.check_nothing_held()


def test_a_shared_prefix_that_makes_steps_fail_harms_only_itself() -> None:
    driver = Driver(n_parallel=5, n_batch=64, max_prefixes=2)
    for i in range(2):
        driver.submit(i, numbers(20, i), max_tokens=30)
    driver.step()
    poison = driver.scheduler.add_prefix((200, *numbers(40)))
    good = driver.scheduler.add_prefix(numbers(30, 3))

    def fails(plan: StepPlan) -> bool:
        return any(entry.tokens[0] == 200 and len(entry.tokens) > 1 for entry in plan.entries)

    while driver.step(fails=fails):
        pass
    assert driver.n_failures == 2
    assert isinstance(poison.error, EngineFailedError)
    assert "this shared prefix failed: the engine failed twice" in str(poison.error)
    assert good.error is None
    assert not good.is_suspect
    assert driver.scheduler.prefixes == [good]
    assert [driver.endings(i) for i in range(2)] == [["length"]] * 2
    driver.scheduler.drop_prefixes()
    driver.check_nothing_held()


def test_a_shared_prefix_that_was_in_a_failed_step_is_computed_alone_and_kept() -> None:
    driver = Driver(n_parallel=5, n_batch=16, max_prefixes=1)
    driver.submit(0, numbers(10), max_tokens=30)
    driver.step()
    prefix = driver.scheduler.add_prefix(numbers(40, 3))
    driver.step(fails=lambda plan: True)
    assert prefix.is_suspect
    while prefix.num_tokens_to_compute:
        driver.step()  # the driver checks that a suspect is alone
    assert not prefix.is_suspect
    driver.run()
    assert driver.endings(0) == ["length"]
    assert driver.scheduler.prefixes == [prefix]

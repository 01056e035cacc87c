"""What the scheduler does for outputs with a form: it carries the matcher and takes in its word."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scheduler_driver import Driver, numbers

from pybatcher.errors import InvalidRequestError
from pybatcher.scheduling import Failed, SampledToken, StepResult

PROMPT = numbers(40)


class Matcher:
    """Knows nothing: the scheduler asks it nothing."""

    is_complete = False

    def follow(self, output: Sequence[int]) -> None:
        raise AssertionError


def step(driver: Driver, tokens: Sequence[int], **says: object) -> None:
    """Compute the next step, in which the engine draws these tokens for sequence 0."""
    assert driver.scheduler.plan(0.0) is not None
    drawn = {0: tuple(map(SampledToken, tokens))}
    driver.events += driver.scheduler.apply(StepResult(drawn, **says), 0.0)


def test_entries_that_draw_have_the_matcher_and_the_output_so_far() -> None:
    driver, matcher = Driver(n_batch=16, n_parallel=2), Matcher()
    driver.submit(0, PROMPT, max_tokens=4, matcher=matcher)
    driver.submit(1, numbers(3), max_tokens=2)
    seen = []
    while (plan := driver.scheduler.plan(0.0)) is not None:
        (own,) = (entry for entry in plan.entries if entry.seq_id == 0)
        seen.append((own.sample, own.matcher, list(own.output)))
        assert all(entry.matcher is None for entry in plan.entries if entry.seq_id == 1)
        driver.events += driver.scheduler.apply(driver.engine.step(plan), 0.0)
    output = driver.output(0)
    assert [one for one in seen if not one[0]] == [(False, None, [])] * 2  # chunks of the prompt
    drawing = [one for one in seen if one[0]]
    assert drawing == [(True, matcher, output[:i]) for i in range(4)]


def test_a_complete_form_ends_the_output_with_its_last_token() -> None:
    driver = Driver(max_draft_tokens=8)
    driver.submit(0, PROMPT, max_tokens=3, matcher=Matcher())
    step(driver, [5], forced={0: (6, 7)})
    step(driver, [6, 7], complete=frozenset({0}))
    assert driver.output(0) == [5, 6, 7]
    assert driver.endings(0) == ["stop"]  # and not "length"
    assert driver.scheduler.is_idle


@pytest.mark.parametrize(
    ("forced", "ends", "draft"),
    [
        ((6, 7, 8), (), (6, 7, 8)),
        (tuple(range(40)), (), tuple(range(5))),  # max_draft_tokens
        ((6, 99, 8), (99,), (6,)),
        ((99,), (99,), ()),
        ((), (), ()),
    ],
)
def test_forced_text_is_the_next_draft(
    forced: tuple[int, ...], ends: tuple[int, ...], draft: tuple[int, ...]
) -> None:
    driver = Driver(max_draft_tokens=5)
    ends_at = frozenset(ends)
    driver.submit(0, PROMPT, max_tokens=60, matcher=Matcher(), end_token_ids=ends_at)
    step(driver, [5], forced={0: forced} if forced else {})
    plan = driver.scheduler.plan(0.0)
    assert plan is not None
    (entry,) = plan.entries
    assert entry.tokens == (5, *draft)
    assert entry.n_draft == plan.draft_rows == len(draft)


def test_a_draft_ends_before_the_last_token_that_may_be_drawn() -> None:
    driver = Driver(max_draft_tokens=8)
    driver.submit(0, PROMPT, max_tokens=3, matcher=Matcher())
    step(driver, [5], forced={0: (6, 7, 8, 9)})
    plan = driver.scheduler.plan(0.0)
    assert plan is not None
    assert plan.entries[0].tokens == (5, 6)


def test_forced_text_is_told_anew_by_each_step() -> None:
    driver = Driver(max_draft_tokens=8)
    driver.submit(0, PROMPT, max_tokens=60, matcher=Matcher())
    step(driver, [5], forced={0: (6, 7)})
    step(driver, [9])
    plan = driver.scheduler.plan(0.0)
    assert plan is not None
    assert plan.entries[0].n_draft == 0


def test_a_form_that_cannot_be_followed_is_the_requests_own_error() -> None:
    driver = Driver()
    driver.submit(0, PROMPT, max_tokens=60, matcher=Matcher())
    error = InvalidRequestError("too much work")
    step(driver, [], failed={0: error})
    assert [event.error for event in driver.events if isinstance(event, Failed)] == [error]

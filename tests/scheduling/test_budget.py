"""Rows of prefill of one step: what a prompt is offered, and what is left."""

from __future__ import annotations

import pytest

from pybatcher.params.config import SchedulerConfig
from pybatcher.scheduling.budget import StepBudget, long_prefill_threshold
from pybatcher.scheduling.step_time import StepLoad


def budget(decode_rows: int = 0, threshold: int = 0, **options: object) -> StepBudget:
    load = StepLoad()
    load.decode_rows = decode_rows
    return StepBudget(SchedulerConfig(n_batch=100, **options), threshold, load, None)


def test_what_is_taken_is_offered_no_more() -> None:
    step = budget(decode_rows=10)
    assert step.offer(0, 200) == 90
    step.take(0, 60)
    assert (step.rows, step.offer(0, 200), step.offer(0, 5)) == (30, 30, 5)
    assert step.load.prefill_rows == 60


def test_max_prefill_tokens_holds_beside_those_who_generate_only() -> None:
    assert budget(decode_rows=1, max_prefill_tokens=20).offer(0, 200) == 20
    assert budget(max_prefill_tokens=20).offer(0, 200) == 100


def test_what_has_to_be_whole_is_offered_all_or_nothing_and_knows_no_cap() -> None:
    step = budget(decode_rows=10, max_prefill_tokens=20)
    assert (step.offer_whole(90), step.offer_whole(91)) == (90, 0)
    step.take(0, 50)
    assert (step.offer_whole(40), step.offer_whole(41)) == (40, 0)


def test_several_prompts_have_a_share_each_and_are_topped_up() -> None:
    step = budget(max_num_partial_prefills=4)
    assert step.offer(0, 200) == 25
    step.take(0, 25)
    assert step.offer(25, 200, had=25) == 75


def test_a_threshold_is_for_the_whole_step() -> None:
    step = budget(threshold=30)
    assert step.offer(0, 200) == 30
    step.take(0, 20)
    assert step.offer(20, 200, had=20) == 10


@pytest.mark.parametrize(
    ("options", "threshold"),
    [
        ({}, 0),
        ({"max_num_partial_prefills": 2}, 40),
        ({"max_num_partial_prefills": 2, "long_prefill_token_threshold": 7}, 7),
    ],
)
def test_the_threshold_of_long_prompts(options: dict[str, int], threshold: int) -> None:
    assert long_prefill_threshold(SchedulerConfig(**options), 1000) == threshold

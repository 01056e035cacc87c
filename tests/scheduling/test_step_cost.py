"""The line through steps of several sizes, and what stands in for it where there is but one."""

from __future__ import annotations

import random

import pytest

from pybatcher.scheduling.step_cost import StepCost


def cost(*steps: tuple[int, float]) -> StepCost:
    made = StepCost()
    for rows, seconds in steps:
        made.note(rows, seconds)
    return made


@pytest.mark.parametrize("rows", [1, 4, 32])
@pytest.mark.parametrize("seconds", [1e-5, 0.01, 3.0])
def test_steps_of_one_size_leave_the_assumption(rows: int, seconds: float) -> None:
    assert cost().rows_of_an_empty_step == 8.0
    assert cost((rows, seconds)).rows_of_an_empty_step == pytest.approx(8.0)
    assert cost(*[(rows, seconds)] * 500).rows_of_an_empty_step == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize("worth", [2.0, 8.0, 30.0])
@pytest.mark.parametrize("scale", [1e-5, 0.01])
def test_it_is_found_from_steps_of_several_sizes(worth: float, scale: float) -> None:
    rng = random.Random(3)
    steps = [(rng.choice([1, 1, 1, 2, 4, 9]), rng.uniform(0.9, 1.1)) for _ in range(300)]
    found = cost(*((rows, (worth + rows) * scale * noise) for rows, noise in steps))
    assert found.rows_of_an_empty_step == pytest.approx(worth, rel=0.5)


def test_hiccups_count_little() -> None:
    steps = [(1 + i % 5, 0.012 + 0.001 * (1 + i % 5)) for i in range(200)]
    steps[190] = (1, 5.0)
    assert cost(*steps).rows_of_an_empty_step == pytest.approx(12.0, rel=0.3)


def test_a_machine_that_changes_is_followed() -> None:
    steps = [(1 + i % 5, 0.012 + 0.001 * (1 + i % 5)) for i in range(200)]
    slower = [(1 + i % 5, 0.2 + 0.1 * (1 + i % 5)) for i in range(500)]
    assert cost(*steps, *slower).rows_of_an_empty_step == pytest.approx(2.0, rel=0.5)


def test_it_stays_within_reason() -> None:
    free_rows = [(1 + i % 5, 0.01) for i in range(100)]
    free_steps = [(1 + i % 5, 0.01 * (1 + i % 5)) for i in range(400)]
    falling = [(1 + i % 5, 0.01 / (1 + i % 5)) for i in range(400)]
    assert 40.0 < cost(*free_rows).rows_of_an_empty_step <= 64.0
    assert cost(*free_steps).rows_of_an_empty_step == pytest.approx(1.0, abs=0.5)
    assert cost(*falling).rows_of_an_empty_step == 64.0


def test_a_clock_that_stands_still_is_no_error() -> None:
    assert cost(*[(1, 0.0), (5, 0.0)] * 10).rows_of_an_empty_step == 64.0
    assert cost((1, 0.0), *[(1, 0.01), (5, 0.05)] * 100).rows_of_an_empty_step < 2.0


def test_what_a_row_costs_is_in_seconds() -> None:
    assert cost().row == 0.0
    assert cost((4, 0.012)).row == pytest.approx(0.001), "as assumed: a step of eight rows and four"
    steps = [(1 + i % 5, 0.012 + 0.001 * (1 + i % 5)) for i in range(300)]
    assert cost(*steps).row == pytest.approx(0.001, rel=0.3)
    assert cost(*[(1, 0.0), (5, 0.0)] * 10).row == 0.0

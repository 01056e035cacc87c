"""What a step takes: the fit finds the law that made the times, and asks for no more than fits."""

from __future__ import annotations

import random

import pytest

from pybatcher.scheduling.step_time import StepCost, StepLoad, StepTime


def law(load: StepLoad) -> float:
    """Seconds of a made-up machine."""
    return (
        0.02
        + 0.0004 * load.decode_rows
        + 0.0011 * load.prefill_rows
        + 2e-7 * load.decode_context
        + 3e-7 * load.prefill_context
    )


def a_load(rng: random.Random, most_prefill: int = 256) -> StepLoad:
    load = StepLoad()
    for _ in range(rng.randrange(17)):
        load.add_decode(rng.randrange(2000))
    if rng.random() < 0.6:
        load.add_prefill(rng.randrange(4000), rng.randrange(1, most_prefill))
    return load


def fitted(noise: float = 0.0, seed: int = 1) -> StepTime:
    rng, model = random.Random(seed), StepTime()
    for _ in range(400):
        load = a_load(rng)
        model.note(load, law(load) * (1.0 + noise * rng.uniform(-1.0, 1.0)))
    return model


def test_it_finds_the_law() -> None:
    model, rng = fitted(), random.Random(2)
    for _ in range(50):
        load = a_load(rng)
        assert model.seconds(load) == pytest.approx(law(load), rel=0.02)


def test_noise_is_averaged_out() -> None:
    model, rng = fitted(noise=0.2), random.Random(3)
    for _ in range(50):
        load = a_load(rng)
        assert model.seconds(load) == pytest.approx(law(load), rel=0.15)


@pytest.mark.parametrize("length", [0, 1000, 30_000])
@pytest.mark.parametrize("target", [0.03, 0.08, 0.3])
def test_the_most_rows_within_a_time(target: float, length: int) -> None:
    model = fitted()
    load = StepLoad()
    load.add_decode(500, rows=8)
    rows = model.prefill_rows_within(target, load, length, wanted=10_000)
    load.add_prefill(length, rows)
    assert law(load) <= target * 1.02
    if rows < model.most_prefill_rows:
        load.add_prefill(length + rows, max(2, rows // 10))
        assert law(load) >= target * 0.98


def test_no_rows_where_decoding_alone_takes_longer() -> None:
    load = StepLoad()
    load.add_decode(100_000, rows=100)
    assert fitted().prefill_rows_within(0.03, load, 0, 100) == 0


def test_it_does_not_foretell_far_beyond_what_it_has_seen() -> None:
    model = StepTime()
    seen = []
    for _ in range(6):
        load = StepLoad()
        load.add_prefill(0, model.prefill_rows_within(1e9, load, 0, 10_000))
        seen.append(load.prefill_rows)
        model.note(load, law(load))
    assert seen == [32, 64, 128, 256, 512, 1024]


def test_no_kind_of_row_ever_costs_less_than_nothing() -> None:
    rng, model = random.Random(4), StepTime()
    for _ in range(300):
        model.note(a_load(rng), rng.uniform(0.01, 1.0))
        assert min(model._solved()) >= 0.0


def test_what_prefill_costs_is_not_forgotten_while_there_is_none() -> None:
    model = fitted()
    for _ in range(5000):
        load = StepLoad()
        load.add_decode(300, rows=4)
        model.note(load, law(load))
    load.add_prefill(0, 100)
    assert model.seconds(load) == pytest.approx(law(load), rel=0.1)


def test_a_machine_that_becomes_slower_is_noticed() -> None:
    rng, model = random.Random(5), StepTime()
    for slowness in (1.0, 3.0):
        for _ in range(400):
            load = a_load(rng)
            model.note(load, slowness * law(load))
    load = a_load(rng)
    assert model.seconds(load) == pytest.approx(3.0 * law(load), rel=0.1)


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

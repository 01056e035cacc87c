"""How often an engine is restarted, and what is said about it."""

from __future__ import annotations

import random

import pytest

from pybatcher import ConfigError, SupervisionConfig
from pybatcher.params.config import split_options
from pybatcher.serving.supervision import RestartIntensity, Supervisor


def test_so_many_restarts_in_a_window_and_no_more() -> None:
    intensity = RestartIntensity(3, 5.0)
    assert [intensity.record(now) for now in (0.0, 1.0, 2.0)] == [True] * 3
    assert not intensity.record(5.0)


def test_what_is_older_than_the_window_does_not_count() -> None:
    intensity = RestartIntensity(3, 5.0)
    assert all(intensity.record(2.0 * i) for i in range(100))
    assert not RestartIntensity(0, 5.0).record(0.0)


@pytest.mark.parametrize("seed", range(5))
def test_no_window_ever_holds_more_than_allowed(seed: int) -> None:
    rng = random.Random(seed)
    intensity, now, times = RestartIntensity(4, 10.0), 0.0, []
    for _ in range(300):
        now += rng.expovariate(0.4)
        times.append(now)
        in_window = sum(now - time <= 10.0 for time in times)
        assert intensity.record(now) == (in_window <= 4)


def test_a_restart_is_remembered_in_words() -> None:
    supervisor = Supervisor(SupervisionConfig())
    assert supervisor.reason(0.0) == "requests are served"
    assert supervisor.failed(MemoryError("no room"), 10.0)
    assert supervisor.status == "restarting"
    assert "being restarted after MemoryError('no room')" in supervisor.reason(10.0)
    supervisor.restarted()
    assert (supervisor.status, supervisor.failure, supervisor.restarts) == ("serving", None, 1)
    assert "engine restarts: 1, the last one 2.5 s ago after MemoryError" in supervisor.reason(12.5)


def test_past_the_intensity_it_has_failed_for_good() -> None:
    supervisor = Supervisor(SupervisionConfig(max_restarts=1, restart_window=60.0))
    assert supervisor.failed(ValueError("one"), 0.0)
    assert not supervisor.failed(ValueError("two"), 60.0)
    assert (supervisor.status, supervisor.restarts) == ("failed", 1)
    assert isinstance(supervisor.failure.__cause__, ValueError)
    assert "ValueError('two')" in supervisor.reason(60.0)
    assert "max_restarts = 1 times in restart_window = 60 s" in str(supervisor.failure)


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_a_hang_is_a_failure_that_may_end(max_restarts: int) -> None:
    supervisor = Supervisor(SupervisionConfig(max_restarts=max_restarts, step_timeout=2.0))
    supervisor.overdue("the step under way", 0.0)
    assert supervisor.status == "hung"
    assert "the step under way has not ended within step_timeout = 2 s" in supervisor.reason(0.0)
    assert supervisor.hang_ended(1.0) == (max_restarts == 1)
    if max_restarts:
        assert supervisor.failure is not None, "nobody is served before the restart"
        supervisor.restarted()
        assert supervisor.failure is None
        assert "a step that hung" in supervisor.reason(1.0)
    else:
        assert supervisor.status == "failed"


def test_its_options_are_options_of_a_batcher() -> None:
    *_, config = split_options({"max_restarts": 7, "n_batch": 64, "step_timeout": None})
    assert config == SupervisionConfig(max_restarts=7, step_timeout=None)
    with pytest.raises(ConfigError, match=r"unknown option 'max_restart'.*max_restarts"):
        split_options({"max_restart": 7})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_restarts", -1),
        ("max_restarts", 1.5),
        ("restart_window", 0.0),
        ("restart_window", "5"),
        ("restart_window", None),
        ("step_timeout", 0),
        ("step_timeout", float("nan")),
        ("step_timeout", True),
    ],
)
def test_values_that_cannot_work(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; it must be a"):
        SupervisionConfig(**{name: value})

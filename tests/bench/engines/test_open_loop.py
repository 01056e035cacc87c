from __future__ import annotations

from bench.engines.interface import Arrival
from bench.engines.open_loop import serve_in_steps


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_requests_are_submitted_when_they_come_and_tokens_stamped() -> None:
    time = FakeTime()
    arrivals = [Arrival(5.0, [1], 2), Arrival(1.0, [2], 3), Arrival(2.5, [3], 1)]
    submitted: list[tuple[int, float]] = []
    left: dict[int, int] = {}

    def submit(index: int, arrival: Arrival) -> None:
        submitted.append((index, time.now - 100.0))
        left[index] = arrival.n_new

    def step() -> list[int]:
        time.now += 1.0
        got = list(left)
        for index in got:
            left[index] -= 1
            if not left[index]:
                del left[index]
        return got

    times = serve_in_steps(arrivals, submit, step, time.clock, time.sleep)
    assert submitted == [(1, 1.0), (2, 3.0), (0, 5.0)]
    assert times == [[6.0, 7.0], [2.0, 3.0, 4.0], [4.0]]
    assert time.slept == [1.0, 1.0]  # nothing to do before 1.0, nor from 4.0 to 5.0


def test_several_tokens_of_one_step() -> None:
    time = FakeTime()

    def step() -> list[int]:
        time.now += 0.5
        return [0, 0, 0]

    times = serve_in_steps(
        [Arrival(0.0, [1], 3)], lambda index, arrival: None, step, time.clock, time.sleep
    )
    assert times == [[0.5, 0.5, 0.5]]

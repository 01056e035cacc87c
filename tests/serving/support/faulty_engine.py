"""A fake engine whose steps fail as a test says, and leave inconsistent state."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from pybatcher.scheduling import StepPlan, StepResult
from pybatcher.testing import FakeEngine

ERRORS = (MemoryError("no room"), RuntimeError("bad"), KeyError("x"), SystemExit(1))


class FaultyEngine(FakeEngine):
    """A fake engine with failing steps.

    fails: called with each plan; the error it returns is raised, alternately before and after the
    pass was computed. After that every call fails until `restart`: no sequence is known any more.
    before_restart: called in each restart, on the engine thread; may block or raise.
    """

    def __init__(
        self,
        fails: Callable[[StepPlan], BaseException | None] = lambda plan: None,
        before_restart: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.fails = fails
        self.before_restart = before_restart
        self.n_failures = self.n_restarts = 0

    def step(self, plan: StepPlan) -> StepResult:
        error = self.fails(plan)
        if error is None:
            return super().step(plan)
        self.n_failures += 1
        if self.n_failures % 2:
            super().step(plan)
        self._kv._sequences.clear()
        raise error

    def restart(self) -> None:
        self.n_restarts += 1
        self.before_restart()
        super().restart()

    def tokens_after(self, plan: StepPlan) -> list[list[int]]:
        """Return the tokens of each sequence of the plan after the step."""
        return [[*self._kv.tokens(entry.seq_id), *entry.tokens] for entry in plan.entries]


def random_failures(seed: int, share: float) -> Callable[[StepPlan], BaseException | None]:
    """Fail random steps, but none with a single sequence, whose request would get the blame."""
    rng = random.Random(seed)
    return lambda plan: (
        rng.choice(ERRORS) if len(plan.entries) > 1 and rng.random() < share else None
    )


def once(step: int) -> Callable[[StepPlan], BaseException | None]:
    """Fail the step of this number, counted from 0."""
    seen: list[StepPlan] = []

    def fails(plan: StepPlan) -> BaseException | None:
        seen.append(plan)
        return OSError("once") if len(seen) == step + 1 else None

    return fails

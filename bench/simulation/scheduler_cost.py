"""The time of `plan` and `apply` by running sequences and queued requests."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.serving.traces import TraceRequest
from bench.simulation.costs import StepCosts
from bench.simulation.run import SchedulerTimes, Simulation
from pybatcher.params.config import SchedulerConfig

__all__ = ["scheduler_cost", "trace_for"]

_PROMPT = 64


def trace_for(n_sequences: int, n_queued: int, n_steps: int) -> list[TraceRequest]:
    """Return requests that arrive at once and end at different steps."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(n_steps // 2, 2 * n_steps, n_sequences + n_queued).tolist()
    return [TraceRequest(at=0.0, prompt_tokens=_PROMPT, new_tokens=n) for n in lengths]


def scheduler_cost(
    n_sequences: int,
    n_queued: int,
    n_steps: int,
    options: Mapping[str, Any],
    on_step: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Return microseconds of `n_steps` steps in which `n_sequences` sequences have a token each.

    Ended requests make room for queued ones: admission is part of the time.
    """
    trace = trace_for(n_sequences, n_queued, n_steps)
    roomy = {
        "n_parallel": n_sequences,
        "n_ctx": n_sequences * (_PROMPT + 2 * n_steps + 64),
        "n_batch": max(512, 2 * n_sequences),
        "max_draft_tokens": SchedulerConfig().max_draft_tokens,  # the lookup is part of the cost
    }
    simulation = Simulation(trace, roomy | dict(options), StepCosts(0.01, 0.0, 0.0, 0.0, 0.0))
    running = 0
    while running < n_sequences:  # the prompts come first
        simulation.step()
        running = simulation.scheduler.statistics().running
    simulation.step()
    times = simulation.times = SchedulerTimes()
    gc.collect()
    gc.freeze()  # a collection would scan the long-lived queued requests within the measured time
    try:
        for _ in range(n_steps):
            simulation.step()
            on_step()
    finally:
        gc.unfreeze()
    counts = simulation.scheduler.statistics()
    return {
        "sequences": n_sequences,
        "queued": n_queued,
        "admitted": counts.submitted - counts.queued - n_sequences,
        **times.figures()["all"],
    }

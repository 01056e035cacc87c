"""Measure steps of many kinds on a real engine, for a fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from bench.engines.interface import random_tokens
from bench.simulation.costs import Work
from pybatcher.scheduling import StepEntry, StepPlan, StepResult

__all__ = ["CHUNK", "CONTEXTS", "SEQUENCES", "measure_steps", "positions_needed"]

SEQUENCES = 16
CONTEXTS = (64, 384, 1024)
CHUNK = 256
_MIXED = (16, 64, 256)  # rows of a prompt beside decode rows
_REPEATS = 3


class Engine(Protocol):
    """The calls of an engine that the measurement needs."""

    def seq_new(self) -> int:
        """Take a sequence id."""

    def seq_remove(self, seq_id: int) -> None:
        """Free a sequence."""

    def step(self, plan: StepPlan) -> StepResult:
        """Run a forward pass."""


def positions_needed() -> int:
    """Return the KV positions that the measurement needs."""
    return SEQUENCES * (CONTEXTS[-1] + 128) + 4 * max(_MIXED)


def measure_steps(
    engine: Engine,
    on_step: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[Work, float]]:
    """Measure steps of prompts, of decoding and of both, at several contexts. Leaves no sequence.

    Every sequence has its own tokens: shared blocks would be read only once.
    """
    measured: list[tuple[Work, float]] = []
    seeds = count(1)

    def step(decode: Sequence[int], prefill: Sequence[tuple[int, int]], lengths: list[int]) -> None:
        """lengths: the length of each sequence, kept up to date. Each prefill is (place, rows)."""
        entries = [StepEntry(ids[i], (i + 1,), True) for i in decode]
        for i, rows in prefill:
            tokens = tuple(random_tokens(rows, seed=next(seeds)))
            entries.append(StepEntry(ids[i], tokens, True))
        work = Work(
            len(decode),
            sum(rows for _, rows in prefill),
            sum(lengths[i] + 1 for i in decode),
            sum(rows * lengths[i] + rows * (rows + 1) // 2 for i, rows in prefill),
        )
        begin = clock()
        engine.step(StepPlan(tuple(entries), len(decode), work.prefill_rows))
        measured.append((work, clock() - begin))
        for i in decode:
            lengths[i] += 1
        for i, rows in prefill:
            lengths[i] += rows
        on_step()

    ids = [engine.seq_new() for _ in range(SEQUENCES)]
    lengths = [0] * SEQUENCES
    step([], [(0, 32)], lengths)  # warms up, because the first pass has one-time costs
    measured.clear()
    for context in CONTEXTS:
        for place in range(SEQUENCES):
            while lengths[place] < context:
                step([], [(place, min(CHUNK, context - lengths[place]))], lengths)
        for size in (1, 2, 4, 8, 16):
            for _ in range(_REPEATS):
                step(range(size), [], lengths)
        for rows in _MIXED:
            ids.append(engine.seq_new())
            lengths.append(0)
            step(range(8), [(SEQUENCES, rows)], lengths)
            step(range(8), [(SEQUENCES, rows)], lengths)
            engine.seq_remove(ids.pop())
            lengths.pop()
    for seq_id in ids:
        engine.seq_remove(seq_id)
    return measured

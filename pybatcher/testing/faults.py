"""`FaultyEngine`: an engine that fails, hangs or is slow where a test says so.

    engine = FaultyEngine(FakeEngine(), FailStep(at=(3, 7)), FailRestart(times=1))

It wraps a `FakeEngine` or a real `Engine`. A fault sees every step before and
after it is computed, and every restart before it is made; what it raises is
what the engine's caller gets. Write others by overriding what `Fault` does.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..params import SamplingParams
from ..scheduling.plan import StepPlan, StepResult
from ..serving.engine_executor import StepEngine

__all__ = [
    "FailAtRandom",
    "FailRestart",
    "FailStep",
    "FailWhen",
    "Fault",
    "FaultyEngine",
    "HangStep",
    "InjectedError",
    "SlowStep",
    "StepFacts",
    "computes",
]


class InjectedError(RuntimeError):
    """What faults raise: of no type that an engine promises."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """A step, as faults see it.

    number: the first step is 1; restarts do not begin anew.
    sequences: of each entry's sequence all tokens, those that the step appends
        at the end.
    """

    number: int
    plan: StepPlan
    sequences: Mapping[int, tuple[int, ...]]


class Fault:
    """Does nothing. Raise or block in what you override."""

    def before_step(self, facts: StepFacts) -> None:
        """On the thread that computes, before anything is."""

    def after_step(self, facts: StepFacts) -> None:
        """The step is computed and appended; what is raised here hides its result."""

    def before_restart(self, number: int) -> None:
        """number: the first restart is 1."""


class FailWhen(Fault):
    """Fail each step for which `condition` holds.

    after: once it is computed, so that the engine has gone on and its caller
        does not know.
    """

    def __init__(self, condition: Callable[[StepFacts], bool], *, after: bool = False) -> None:
        self._condition = condition
        self._after = after

    def before_step(self, facts: StepFacts) -> None:
        """See `Fault`."""
        if not self._after:
            self._fail_if_due(facts)

    def after_step(self, facts: StepFacts) -> None:
        """See `Fault`."""
        if self._after:
            self._fail_if_due(facts)

    def _fail_if_due(self, facts: StepFacts) -> None:
        if self._condition(facts):
            when = "after" if self._after else "before"
            raise InjectedError(f"step {facts.number} was made to fail, {when} it was computed")


class FailStep(FailWhen):
    """Fail the steps with these numbers; the first is 1."""

    def __init__(self, at: Collection[int], *, after: bool = False) -> None:
        super().__init__(lambda facts: facts.number in at, after=after)


class FailAtRandom(FailWhen):
    """Fail this share of the steps, chosen by the seed alone."""

    def __init__(self, rate: float, seed: int, *, after: bool = False) -> None:
        generator = random.Random(seed)
        super().__init__(lambda facts: generator.random() < rate, after=after)


class SlowStep(Fault):
    """Sleep so many seconds before the steps with these numbers; None: before every step."""

    def __init__(self, seconds: float, at: Collection[int] | None = None) -> None:
        self._seconds = seconds
        self._at = at

    def before_step(self, facts: StepFacts) -> None:
        """See `Fault`."""
        if self._at is None or facts.number in self._at:
            time.sleep(self._seconds)


class HangStep(Fault):
    """Hang in the step with this number until `release` is set, then compute it."""

    def __init__(self, at: int, release: threading.Event) -> None:
        self._at = at
        self._release = release

    def before_step(self, facts: StepFacts) -> None:
        """See `Fault`."""
        if facts.number == self._at:
            self._release.wait()


class FailRestart(Fault):
    """Fail the first so many restarts."""

    def __init__(self, times: int) -> None:
        self._times = times

    def before_restart(self, number: int) -> None:
        """See `Fault`."""
        if number <= self._times:
            raise InjectedError(f"restart {number} was made to fail")


def computes(tokens: Sequence[int]) -> Callable[[StepFacts], bool]:
    """A condition for `FailWhen`: a row of the step ends `tokens`, wherever a sequence has them.

    A poisonous request: however it is cut into steps, it cannot be computed.
    """
    poison = tuple(tokens)

    def holds(facts: StepFacts) -> bool:
        for entry in facts.plan.entries:
            sequence = facts.sequences[entry.seq_id]
            first_end = max(len(poison), len(sequence) - len(entry.tokens) + 1)
            for end in range(first_end, len(sequence) + 1):
                if sequence[end - len(poison) : end] == poison:
                    return True
        return False

    return holds


class FaultyEngine:
    """The engine that it wraps, with faults; a `StepEngine`.

    What is not part of `StepEngine` goes to the wrapped engine as it is.
    """

    def __init__(self, engine: StepEngine, *faults: Fault) -> None:
        self._engine = engine
        self._faults = faults
        self._sequences: dict[int, list[int]] = {}
        self.n_steps = 0
        self.n_restarts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    # -- where faults are ---------------------------------------------------------------------

    def step(self, plan: StepPlan) -> StepResult:
        """One forward pass, unless a fault is against it."""
        self.n_steps += 1
        sequences = {
            entry.seq_id: (*self._sequences.get(entry.seq_id, ()), *entry.tokens)
            for entry in plan.entries
        }
        facts = StepFacts(self.n_steps, plan, sequences)
        for fault in self._faults:
            fault.before_step(facts)
        result = self._engine.step(plan)
        for seq_id, tokens in sequences.items():  # of guesses, those that were right
            self._sequences[seq_id] = list(tokens[: self._engine.seq_length(seq_id)])
        for fault in self._faults:
            fault.after_step(facts)
        return result

    def restart(self) -> None:
        """Forget all sequences and cached KV, unless a fault is against it."""
        self.n_restarts += 1
        for fault in self._faults:
            fault.before_restart(self.n_restarts)
        self._engine.restart()
        self._sequences.clear()

    # -- what sequences hold, followed ----------------------------------------------------------

    def seq_new(self, namespace: str = "") -> int:
        """See `KvAllocator`."""
        seq_id = self._engine.seq_new(namespace)
        self._sequences[seq_id] = []
        return seq_id

    def seq_copy(self, src: int, dst: int, n_tokens: int) -> None:
        """See `KvAllocator`."""
        self._engine.seq_copy(src, dst, n_tokens)
        self._sequences[dst] = self._sequences[src][:n_tokens]

    def seq_remove(self, seq_id: int, start: int = 0, end: int = -1) -> None:
        """See `KvAllocator`."""
        self._engine.seq_remove(seq_id, start, end)
        del self._sequences[seq_id][start:]

    def seq_match(self, seq_id: int, tokens: Sequence[int]) -> int:
        """See `KvAllocator`."""
        n_matched = self._engine.seq_match(seq_id, tokens)
        self._sequences[seq_id] = list(tokens[:n_matched])
        return n_matched

    # -- handed on ----------------------------------------------------------------------------

    def seq_length(self, seq_id: int) -> int:
        """See `KvAllocator`."""
        return self._engine.seq_length(seq_id)

    def seq_exclusive_blocks(self, seq_id: int) -> int:
        """See `KvAllocator`."""
        return self._engine.seq_exclusive_blocks(seq_id)

    def seq_sampling(
        self,
        seq_id: int,
        params: SamplingParams | None,
        *,
        seed: int = 0,
        n_prompt: int = 0,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """See `KvAllocator`."""
        self._engine.seq_sampling(
            seq_id, params, seed=seed, n_prompt=n_prompt, stop_token_ids=stop_token_ids
        )

    def check_integrity(self) -> None:
        """Raise EngineError if the bookkeeping of sequences and KV blocks does not add up."""
        self._engine.check_integrity()

    def close(self) -> None:
        """Free weights and KV."""
        self._engine.close()

    @property
    def vocab_size(self) -> int:
        """See `StepEngine`."""
        return self._engine.vocab_size

    @property
    def progress(self) -> int:
        """See `StepEngine`."""
        return self._engine.progress

    @property
    def block_size(self) -> int:
        """See `KvAllocator`."""
        return self._engine.block_size

    @property
    def n_parallel(self) -> int:
        """See `KvAllocator`."""
        return self._engine.n_parallel

    @property
    def max_sequence_length(self) -> int:
        """See `KvAllocator`."""
        return self._engine.max_sequence_length

    @property
    def kv_total_blocks(self) -> int:
        """See `KvAllocator`."""
        return self._engine.kv_total_blocks

    @property
    def kv_free_blocks(self) -> int:
        """See `KvAllocator`."""
        return self._engine.kv_free_blocks

    @property
    def kv_cached_blocks(self) -> int:
        """See `KvAllocator`."""
        return self._engine.kv_cached_blocks

"""`FaultyEngine`: an engine that fails, hangs or is slow at the steps that a test chooses.

    engine = FaultyEngine(FakeEngine(), FailStep(at=(3, 7)), FailRestart(times=1))

It wraps a `FakeEngine` or a real `Engine`. A fault is called before and after every step and before
every restart; the engine's caller gets the exception that it raises. Subclass `Fault` for other
faults.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

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
    """Raised by the faults here. No engine is documented to raise an error of this type."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Description of a step that is passed to faults.

    number: the first step is 1; a restart does not reset the count.
    sequences: all tokens of each entry's sequence, by sequence id, with the tokens that
        the step appends at the end.
    """

    number: int
    plan: StepPlan
    sequences: Mapping[int, tuple[int, ...]]


class Fault:
    """Base of all faults: does nothing. A subclass overrides a method and raises or blocks."""

    def before_step(self, facts: StepFacts) -> None:
        """Run on the engine thread, before the step is computed."""

    def after_step(self, facts: StepFacts) -> None:
        """Run on the engine thread, after the step is computed and its tokens are appended.

        An exception raised here replaces the step's result.
        """

    def before_restart(self, number: int) -> None:
        """Run before the engine is restarted. number: the first restart is 1."""


class FailWhen(Fault):
    """Fail each step for which `condition` holds.

    after: fail after the step is computed, so that the engine has appended tokens that its caller
        does not know.
    """

    def __init__(self, condition: Callable[[StepFacts], bool], *, after: bool = False) -> None:
        self._condition = condition
        self._after = after

    @override
    def before_step(self, facts: StepFacts) -> None:
        if not self._after:
            self._fail_if_due(facts)

    @override
    def after_step(self, facts: StepFacts) -> None:
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
    """Fail a share of the steps (`rate`, 0 to 1), chosen by a generator with this seed."""

    def __init__(self, rate: float, seed: int, *, after: bool = False) -> None:
        generator = random.Random(seed)
        super().__init__(lambda facts: generator.random() < rate, after=after)


class SlowStep(Fault):
    """Sleep `seconds` before the steps with these numbers; None: before every step."""

    def __init__(self, seconds: float, at: Collection[int] | None = None) -> None:
        self._seconds = seconds
        self._at = at

    @override
    def before_step(self, facts: StepFacts) -> None:
        if self._at is None or facts.number in self._at:
            time.sleep(self._seconds)


class HangStep(Fault):
    """Block before the step with this number until `release` is set, then compute it."""

    def __init__(self, at: int, release: threading.Event) -> None:
        self._at = at
        self._release = release

    @override
    def before_step(self, facts: StepFacts) -> None:
        if facts.number == self._at:
            self._release.wait()


class FailRestart(Fault):
    """Fail the first `times` restarts."""

    def __init__(self, times: int) -> None:
        self._times = times

    @override
    def before_restart(self, number: int) -> None:
        if number <= self._times:
            raise InjectedError(f"restart {number} was made to fail")


def computes(tokens: Sequence[int]) -> Callable[[StepFacts], bool]:
    """Return a condition for `FailWhen`: the step completes the run `tokens` in a sequence.

    Models a poisonous request, which fails however its prompt is split into steps.
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


class FaultyEngine(StepEngine):
    """A wrapped engine with faults.

    Attributes that are not part of `StepEngine` are the wrapped engine's.
    """

    def __init__(self, engine: StepEngine, *faults: Fault) -> None:
        self._engine = engine
        self._faults = faults
        self._sequences: dict[int, list[int]] = {}
        self.n_steps = 0
        self.n_restarts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    # -- with faults --------------------------------------------------------------------------

    @override
    def step(self, plan: StepPlan) -> StepResult:
        self.n_steps += 1
        sequences = {
            entry.seq_id: (*self._sequences.get(entry.seq_id, ()), *entry.tokens)
            for entry in plan.entries
        }
        facts = StepFacts(self.n_steps, plan, sequences)
        for fault in self._faults:
            fault.before_step(facts)
        result = self._engine.step(plan)
        # draft tokens of a step count only if they were accepted
        for seq_id, tokens in sequences.items():
            self._sequences[seq_id] = list(tokens[: self._engine.seq_length(seq_id)])
        for fault in self._faults:
            fault.after_step(facts)
        return result

    @override
    def restart(self) -> None:
        self.n_restarts += 1
        for fault in self._faults:
            fault.before_restart(self.n_restarts)
        self._engine.restart()
        self._sequences.clear()

    # -- tracking the sequences' tokens ---------------------------------------------------------

    @override
    def seq_new(self, namespace: str = "", *, common: bool = False) -> int:
        seq_id = self._engine.seq_new(namespace, common=common)
        self._sequences[seq_id] = []
        return seq_id

    @override
    def seq_copy(self, src: int, dst: int, n_tokens: int) -> None:
        self._engine.seq_copy(src, dst, n_tokens)
        self._sequences[dst] = self._sequences[src][:n_tokens]

    @override
    def seq_remove(self, seq_id: int, start: int = 0, end: int = -1) -> None:
        self._engine.seq_remove(seq_id, start, end)
        del self._sequences[seq_id][start:]

    @override
    def seq_match(self, seq_id: int, tokens: Sequence[int]) -> int:
        n_matched = self._engine.seq_match(seq_id, tokens)
        self._sequences[seq_id] = list(tokens[:n_matched])
        return n_matched

    # -- unchanged ----------------------------------------------------------------------------

    @override
    def seq_length(self, seq_id: int) -> int:
        return self._engine.seq_length(seq_id)

    @override
    def seq_copyable(self, src: int, n_tokens: int) -> int:
        return self._engine.seq_copyable(src, n_tokens)

    @override
    def seq_exclusive_blocks(self, seq_id: int) -> int:
        return self._engine.seq_exclusive_blocks(seq_id)

    @override
    def seq_sampling(
        self,
        seq_id: int,
        params: SamplingParams | None,
        *,
        seed: int = 0,
        n_prompt: int = 0,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self._engine.seq_sampling(
            seq_id, params, seed=seed, n_prompt=n_prompt, stop_token_ids=stop_token_ids
        )

    @override
    def check_integrity(self) -> None:
        self._engine.check_integrity()

    @override
    def close(self) -> None:
        self._engine.close()

    @property
    @override
    def vocab_size(self) -> int:
        return self._engine.vocab_size

    @property
    @override
    def progress(self) -> int:
        return self._engine.progress

    @property
    @override
    def block_size(self) -> int:
        return self._engine.block_size

    @property
    @override
    def n_parallel(self) -> int:
        return self._engine.n_parallel

    @property
    @override
    def max_sequence_length(self) -> int:
        return self._engine.max_sequence_length

    @property
    @override
    def kv_total_blocks(self) -> int:
        return self._engine.kv_total_blocks

    @property
    @override
    def kv_free_blocks(self) -> int:
        return self._engine.kv_free_blocks

    @property
    @override
    def kv_cached_blocks(self) -> int:
        return self._engine.kv_cached_blocks

    @property
    @override
    def kv_appendable_blocks(self) -> int:
        return self._engine.kv_appendable_blocks

    @property
    @override
    def kv_most_appendable_blocks(self) -> int:
        return self._engine.kv_most_appendable_blocks

    @property
    @override
    def takes_drafts(self) -> bool:
        return self._engine.takes_drafts

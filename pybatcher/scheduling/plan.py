"""What the scheduler asks of one engine step, and what comes back.

Plain values without behaviour: the scheduler makes a `StepPlan`, the engine
(or a fake) turns it into a `StepResult`, the scheduler applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["SampledToken", "StepEntry", "StepPlan", "StepResult"]


@dataclass(frozen=True, slots=True)
class StepEntry:
    """Tokens to append to one sequence in this step.

    `sample`: the last of them is followed by a new token, drawn as the
    sequence's sampling parameters say. A decode row is an entry of one token
    that samples; a prefill chunk samples only when it ends its prompt.
    """

    seq_id: int
    tokens: tuple[int, ...]
    sample: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass: decode entries first, then prefill entries."""

    entries: tuple[StepEntry, ...]
    decode_rows: int
    prefill_rows: int


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A drawn token. `logprob` and `top_logprobs` only where asked for."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave: by seq_id, a token, or why there is none.

    A sequence is in `sampled` or in `failed`, never in both, and only if its
    entry asked to sample. `failed` says, in words, why this one sequence could
    not draw a token (its logits are not finite, say); the others are unharmed.
    """

    sampled: Mapping[int, SampledToken]
    failed: Mapping[int, str] = field(default_factory=dict)

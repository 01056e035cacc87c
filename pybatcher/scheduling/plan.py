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

    n_draft: so many of the tokens, the last ones, are guesses at what will be
    drawn. A guess that is just what is drawn before it stays, and a token is
    drawn after it too; from the first that is not, they leave no trace. So
    the tokens are those of steps without guesses, and more of them a step.
    """

    seq_id: int
    tokens: tuple[int, ...]
    sample: bool
    n_draft: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass: decode entries first, then prefill entries.

    Its rows: a token of each decode entry, their guesses, and prompt tokens.
    """

    entries: tuple[StepEntry, ...]
    decode_rows: int
    prefill_rows: int
    draft_rows: int = 0


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A drawn token. `logprob` and `top_logprobs` only where asked for."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave: by seq_id, the tokens drawn, or why there is none.

    A sequence is here only if its entry asked to sample. It has a token, and one
    more for each guess of its entry that was right. `failed` says, in words, why
    this one sequence could not draw a token (its logits are not finite, say), or
    no further one: then it is in `sampled` too, with those before. The others
    are unharmed.
    """

    sampled: Mapping[int, tuple[SampledToken, ...]]
    failed: Mapping[int, str] = field(default_factory=dict)

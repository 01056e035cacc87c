"""What the scheduler asks of one engine step, and what comes back.

Plain values without behaviour: the scheduler makes a `StepPlan`, the engine
(or a fake) turns it into a `StepResult`, the scheduler applies it. What there is
one of for every sequence in every step is a named tuple: it is made four times as
fast as a frozen dataclass.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["Pooling", "SampledToken", "StepEntry", "StepPlan", "StepResult"]


Pooling = Literal["mean", "last"]
"""Of the states of a text's tokens after the final norm: their mean, or the last of them."""


class StepEntry(NamedTuple):
    """Tokens to append to one sequence in this step.

    `sample`: the last of them is followed by a new token, drawn as the
    sequence's sampling parameters say. A decode row is an entry of one token
    that samples; a prefill chunk samples only when it ends its prompt.

    n_draft: how many of the tokens, the last ones, are a draft of what will be
    drawn. A draft token equal to the one drawn before it is accepted, and a token
    is drawn after it too; from the first that is not, they leave no trace. So
    the tokens are those of steps without drafts, and more of them a step.

    An entry that does not sample may ask about its own tokens.
    targets: tokens whose log-probability is wanted, one after each of the
        entry's last len(targets) rows; the last of them is what comes after the
        entry's last token.
    pooling: the entry's rows after the final norm as one vector: their mean, or
        the last of them. Of a prompt that is cut into several entries it would
        be that of its part.
    """

    seq_id: int
    tokens: tuple[int, ...]
    sample: bool
    n_draft: int = 0
    targets: tuple[int, ...] = ()
    pooling: Pooling | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass: decode entries first, then prefill entries.

    Its rows: a token of each decode entry, their draft tokens, and prompt tokens.
    """

    entries: tuple[StepEntry, ...]
    decode_rows: int
    prefill_rows: int
    draft_rows: int = 0


class SampledToken(NamedTuple):
    """A drawn token. `logprob` and `top_logprobs` only where asked for."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave: by seq_id, what its entry asked for, or why there is none.

    sampled: the token drawn, and one more for each accepted draft token.
    failed: in words, why this one sequence could not draw a token (its logits
        are not finite, say), or no further one: then it is in `sampled` too, with
        those before. Or why it could not be scored or pooled. The others are
        unharmed.
    logprobs: one for each of the entry's targets, of the model's own
        distribution: what `SampledToken.logprob` says of a token that is drawn.
    embeddings: float32 (hidden_size), where pooling was asked for.
    """

    sampled: Mapping[int, tuple[SampledToken, ...]]
    failed: Mapping[int, str] = field(default_factory=dict)
    logprobs: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    embeddings: Mapping[int, array[float]] = field(default_factory=dict)

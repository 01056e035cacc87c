"""`StepPlan` and `StepResult`: one engine step, as the scheduler plans it, and its results.

Plain values without behaviour: the scheduler makes a `StepPlan`, the engine (or a fake) turns it
into a `StepResult`, the scheduler applies it. Values of which every sequence has one in every step
are named tuples, which are made four times as fast as frozen dataclasses.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from ..errors import PybatcherError

__all__ = [
    "Pooling",
    "SampledToken",
    "StepEntry",
    "StepPlan",
    "StepResult",
    "TokenMatcher",
    "TopLogprobs",
]


Pooling = Literal["mean", "last", "cls"]
"""How a text's states after the final norm become a vector: their mean, the last, or the first."""

TopLogprobs = tuple[tuple[int, float], ...]
"""(token id, log-probability in nats) of the likeliest tokens at one place, best first."""


class TokenMatcher(Protocol):
    """Where an output stands in the form that it must have.

    The engine asks it which tokens may be drawn, and has it follow them. The scheduler only
    carries it.
    """

    @property
    def is_complete(self) -> bool:
        """True when nothing but an end can come."""

    def follow(self, output: Sequence[int]) -> None:
        """Go to the end of `output`: the output of the last time with more tokens, or fewer."""


class StepEntry(NamedTuple):
    """Tokens to append to one sequence in this step.

    seq_id: the sequence. tokens: token ids, at least one.
    sample: a new token is drawn after the last one, with the sequence's sampling parameters. A
        decode entry has one token and samples; a prefill chunk samples only when it ends its
        prompt.
    n_draft: how many of the tokens, the last ones, are a draft of the tokens to be drawn. A draft
        token equal to the token drawn at its place is accepted, and a token is drawn after it
        too. The first that differs, and all after it, are rolled back. So the output is that of
        steps without drafts, in fewer steps.

    An entry that does not sample may be scored or pooled:
    targets: tokens whose log-probability is wanted, one after each of the entry's last
        len(targets) rows; the last target is the token after the entry's last one.
    n_top: how many of the likeliest tokens are wanted beside each target.
    pooling: return the entry's rows after the final norm as one vector. The rows of other entries
        of the same prompt do not count.

    Of a sequence whose output must have a form:
    matcher: where the output stood after an earlier step. output: the tokens drawn so far; they
        do not change before the step has ended. Tokens are drawn that the form allows.
    """

    seq_id: int
    tokens: tuple[int, ...]
    sample: bool
    n_draft: int = 0
    targets: tuple[int, ...] = ()
    pooling: Pooling | None = None
    matcher: TokenMatcher | None = None
    output: Sequence[int] = ()
    n_top: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass: decode entries first, then prefill entries.

    decode_rows, draft_rows, prefill_rows: one row for each decode entry, for each draft token,
        and for each prompt token. Their sum is the number of rows.
    """

    entries: tuple[StepEntry, ...]
    decode_rows: int
    prefill_rows: int
    draft_rows: int = 0


class SampledToken(NamedTuple):
    """A drawn token.

    logprob: of the token, in nats; None where none was asked for.
    top_logprobs: of the likeliest tokens; empty where none was asked for.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: TopLogprobs = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of one step, by seq_id.

    sampled: the token drawn, and one more for each accepted draft token.
    failed: why one sequence could not draw a token, or be scored or pooled, in words (its logits
        are not finite, say), or as the error that its request gets. Tokens drawn before the
        failure are in `sampled`. Other sequences are not affected.
    logprobs: one for each of the entry's targets, in nats, by the model's own distribution, as
        `SampledToken.logprob` has it.
    embeddings: float32 (hidden_size), where pooling was asked for.
    top_logprobs: one for each of the entry's targets, where `n_top` is not 0.
    complete: sequences whose outputs have all of their form now: the last token drawn is the last.
    forced: tokens of the text that the form has come next. The model may write that text in
        other tokens: so they are good drafts, and no more.
    """

    sampled: Mapping[int, tuple[SampledToken, ...]]
    failed: Mapping[int, str | PybatcherError] = field(default_factory=dict)
    logprobs: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    embeddings: Mapping[int, array[float]] = field(default_factory=dict)
    complete: frozenset[int] = frozenset()
    forced: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    top_logprobs: Mapping[int, tuple[TopLogprobs, ...]] = field(default_factory=dict)

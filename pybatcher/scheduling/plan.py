"""`StepPlan` and `StepResult`: one engine step, as the scheduler plans it, and its results.

The scheduler makes a `StepPlan`, the engine (or a fake) turns it into a `StepResult`, and the
scheduler applies the result. Values that every sequence needs in every step are named tuples,
because they are created four times as fast as frozen dataclasses.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ..errors import PybatcherError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "EncodeWork",
    "Pooling",
    "SampledToken",
    "StepEntry",
    "StepPlan",
    "StepResult",
    "TokenMatcher",
    "TopLogprobs",
]


Pooling = Literal["mean", "last", "cls"]
"""The vector of a text: the mean of its states after the final norm, the last, or the first."""

TopLogprobs = tuple[tuple[int, float], ...]
"""(token id, log-probability in nats) of the likeliest tokens at one position, best first."""


class TokenMatcher(Protocol):
    """The state of a structured output in its grammar.

    The engine reads the tokens that may be sampled from it, and advances it by the sampled
    tokens. The scheduler passes it on unread.
    """

    @property
    def is_complete(self) -> bool:
        """True if only the end of the output can follow."""

    def follow(self, output: Sequence[int]) -> None:
        """Advance or roll back to the end of `output`."""


class StepEntry(NamedTuple):
    """Tokens to append to one sequence in this step.

    seq_id: the sequence.
    tokens: token ids, at least one.
    sample: sample a token after the last one, with the sequence's sampling parameters. A decode
        entry has one token and samples. A prefill chunk samples only if it ends its prompt.
    n_draft: number of draft tokens at the end of `tokens`. A draft token that equals the token
        sampled at its position is accepted, and a token is sampled after it too. The first that
        differs is rejected, and all after it. The output is that of steps without drafts, in
        fewer steps.

    An entry that does not sample may be scored or pooled:
    targets: tokens whose log-probability is wanted, one after each of the last len(targets) rows.
        The last target is the token after the last token of the entry.
    pooling: return the states of the entry's rows after the final norm as one vector. The rows
        of other entries of the same prompt are not included.
    n_top: number of the likeliest tokens to report beside each target.

    images: (offset, rows) of each run of tokens that stand for rows of an image: `rows` is a
        contiguous float32 array (n, image_columns), and tokens[offset : offset + n] are ids of
        `scheduling.images`.

    A structured output also has:
    matcher: the state of the output after an earlier step. Only tokens that it allows are
        sampled. output: the tokens sampled so far, which do not change before the step ends.

    The compiled engine reads the first eight fields by their position.
    """

    seq_id: int
    tokens: tuple[int, ...]
    sample: bool
    n_draft: int = 0
    targets: tuple[int, ...] = ()
    pooling: Pooling | None = None
    n_top: int = 0
    images: tuple[tuple[int, NDArray[np.float32]], ...] = ()
    matcher: TokenMatcher | None = None
    output: Sequence[int] = ()


class EncodeWork(NamedTuple):
    """The part of the vision tower's work that a step does.

    begin: the `Tile`s to encode from now on, in the place of those in the tower; (): the tower
        continues.
    row_layers: the number of rows times layers to compute, at least. The engine computes whole
        chunks of rows.
    """

    begin: tuple[Any, ...]
    row_layers: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass: decode entries first, then prefill entries.

    decode_rows, draft_rows, prefill_rows: one row for each decode entry, for each draft token,
        and for each prompt token. Their sum is the number of rows of the pass.
    encode: the work of the vision tower before the pass; with it, there may be no entries.
    """

    entries: tuple[StepEntry, ...]
    decode_rows: int
    prefill_rows: int
    draft_rows: int = 0
    encode: EncodeWork | None = None


class SampledToken(NamedTuple):
    """A sampled token.

    logprob: log-probability of the token, in nats; None if the request wants none.
    top_logprobs: those of the likeliest tokens; empty if the request wants none.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: TopLogprobs = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of one step, by seq_id.

    sampled: the sampled token, and one more for each accepted draft token.
    failed: the reason why a sequence could not be sampled, scored or pooled (for example because
        its logits are not finite), or the error that its request gets. `sampled` has the tokens
        sampled before the failure. Other sequences are not affected.
    logprobs: the log-probability of each target, in nats, by the model's own distribution, as in
        `SampledToken.logprob`.
    embeddings: float32 (hidden_size,), if the entry has a pooling.
    top_logprobs: the likeliest tokens beside each target, if `n_top` is not 0.
    complete: sequences whose structured output ends with the last sampled token.
    forced: tokens of the text that the grammar demands next. The model may write that text in
        other tokens, so these are only drafts.
    encoded: when the tower is done with its tiles, the rows of each, float32 (n_tokens,
        image_columns), or the reason why a tile has none; else None.
    """

    sampled: Mapping[int, tuple[SampledToken, ...]]
    failed: Mapping[int, str | PybatcherError] = field(default_factory=dict)
    logprobs: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    embeddings: Mapping[int, array[float]] = field(default_factory=dict)
    complete: frozenset[int] = frozenset()
    forced: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    top_logprobs: Mapping[int, tuple[TopLogprobs, ...]] = field(default_factory=dict)
    encoded: tuple[NDArray[np.float32] | str, ...] | None = None

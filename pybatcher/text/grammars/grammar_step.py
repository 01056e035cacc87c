"""`GrammarJob`: prepares structured outputs before a step, and advances them after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...errors import InvalidRequestError, PybatcherError
from ...errors.checks import short
from .matcher import OutputMatcher

__all__ = ["GrammarJob", "GrammarOutcome", "after_step", "before_step"]


class GrammarJob(NamedTuple):
    """A sequence that samples in this step: its matcher, and the draft tokens that it allows.

    only: the only allowed token at each position, the first and those after the draft's tokens;
        ANY_TOKEN if there is a choice.
    """

    seq_id: int
    matcher: OutputMatcher
    draft: tuple[int, ...]
    only: tuple[int, ...]


class GrammarOutcome(NamedTuple):
    """The result for a sequence: tokens to keep, whether it is complete, forced tokens."""

    n_tokens: int
    is_complete: bool
    forced: tuple[int, ...]
    error: PybatcherError | None


def before_step(
    seq_id: int, matcher: OutputMatcher, output: Sequence[int], draft: tuple[int, ...]
) -> GrammarJob:
    """Advance a matcher to the end of the output, and cut disallowed tokens off the draft."""
    matcher.follow(output)
    n_allowed, only = matcher.allowed(draft)
    return GrammarJob(seq_id, matcher, draft[:n_allowed], tuple(only))


def after_step(job: GrammarJob, tokens: Sequence[int]) -> GrammarOutcome:
    """Advance a matcher by the sampled tokens, some of which may follow the structure's end."""
    error = job.matcher.error
    if not error:
        n_tokens = job.matcher.advance(tokens)
        error = job.matcher.error
    if error:
        typed = InvalidRequestError(
            f"the form of this output asks for too much work, or cannot be followed: "
            f"{short(error)}; make it simpler"
        )
        return GrammarOutcome(0, False, (), typed)
    if job.matcher.is_complete:
        return GrammarOutcome(n_tokens, True, (), None)
    return GrammarOutcome(n_tokens, False, job.matcher.forced(), None)

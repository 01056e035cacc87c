"""`FormStep`: what outputs with a form need before a step and after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...errors import InvalidRequestError, PybatcherError
from ...errors.checks import short
from .matcher import OutputMatcher

__all__ = ["FormJob", "FormOutcome", "after_step", "before_step"]


class FormJob(NamedTuple):
    """A sequence that draws in this step: its matcher, and the draft that its form allows.

    only: the only token that may be drawn at each place, the first and those after the draft's
        tokens; ANY_TOKEN where there is a choice.
    """

    seq_id: int
    matcher: OutputMatcher
    draft: tuple[int, ...]
    only: tuple[int, ...]


class FormOutcome(NamedTuple):
    """After a step: tokens to keep, whether the form is complete, what it has come next."""

    n_tokens: int
    is_complete: bool
    forced: tuple[int, ...]
    error: PybatcherError | None


def before_step(
    seq_id: int, matcher: OutputMatcher, output: Sequence[int], draft: tuple[int, ...]
) -> FormJob:
    """Bring a matcher to the end of the output, and cut what its form refuses off the draft."""
    matcher.follow(output)
    n_allowed, only = matcher.allowed(draft)
    return FormJob(seq_id, matcher, draft[:n_allowed], tuple(only))


def after_step(job: FormJob, tokens: Sequence[int]) -> FormOutcome:
    """Have a matcher follow the drawn tokens, of which some may come after the form's end."""
    error = job.matcher.error
    if not error:
        n_tokens = job.matcher.advance(tokens)
        error = job.matcher.error
    if error:
        typed = InvalidRequestError(
            f"the form of this output asks for too much work, or cannot be followed: "
            f"{short(error)}; make it simpler"
        )
        return FormOutcome(0, False, (), typed)
    if job.matcher.is_complete:
        return FormOutcome(n_tokens, True, (), None)
    return FormOutcome(n_tokens, False, job.matcher.forced(), None)

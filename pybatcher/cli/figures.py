"""`Figures`: the measurements of a run of several callers."""

from __future__ import annotations

from dataclasses import dataclass

from ..calls.completion import Completion

__all__ = ["Figures"]


@dataclass(frozen=True, slots=True)
class Figures:
    """Measurements of a run in which all callers start at the beginning. Times are in seconds.

    completions: one for each caller.
    forward_passes: number of engine steps in the run.
    """

    completions: tuple[Completion, ...]
    forward_passes: int

    @property
    def begin(self) -> float:
        """The time at which the first request was submitted, on the clock of the timelines."""
        return min(c.timeline.submitted for c in self.completions)

    @property
    def seconds(self) -> float:
        """Seconds from `begin` to the end of the last answer."""
        return max(c.timeline.finished for c in self.completions) - self.begin

    @property
    def tokens(self) -> int:
        """Number of generated tokens of all answers."""
        return sum(len(c.token_ids) for c in self.completions)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens of all answers per second of the run."""
        return self.tokens / self.seconds

    @property
    def ttft(self) -> list[float]:
        """Seconds from `begin` to each caller's first token, including the wait for its turn."""
        return [c.timeline.first_token - self.begin for c in self.completions]

    @property
    def itl(self) -> list[float]:
        """Seconds between neighbouring tokens of an answer, for all answers."""
        return [gap for c in self.completions for gap in c.timeline.itl]

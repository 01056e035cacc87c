"""`Figures`: what a run of several callers measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..calls.completion import Completion

__all__ = ["Figures", "percentile"]


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of callers who all ask at its beginning. Times are in seconds.

    `begin` is of the clock of the completions' timelines: when the first of them was submitted.
    """

    completions: tuple[Completion, ...]
    forward_passes: int

    @property
    def begin(self) -> float:
        """When all asked."""
        return min(c.timeline.submitted for c in self.completions)

    @property
    def seconds(self) -> float:
        """Until the last answer was whole."""
        return max(c.timeline.finished for c in self.completions) - self.begin

    @property
    def tokens(self) -> int:
        """Generated, of all answers."""
        return sum(len(c.token_ids) for c in self.completions)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens of all answers over the time of the run."""
        return self.tokens / self.seconds

    @property
    def ttft(self) -> list[float]:
        """How long each caller waited for a first token, its turn included."""
        return [c.timeline.first_token - self.begin for c in self.completions]

    @property
    def itl(self) -> list[float]:
        """The gaps between neighbouring tokens of an answer, of all answers."""
        return [gap for c in self.completions for gap in c.timeline.itl]


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that `percent` of them do not exceed; 0.0 where there are none."""
    if not values:
        return 0.0
    return sorted(values)[max(math.ceil(len(values) * percent / 100) - 1, 0)]

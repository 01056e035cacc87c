"""The outcome of a stage of bench.gpu_check: checks, failures, and parts that were not run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FAILED", "NOT_RUN", "PASSED", "Outcome", "exit_status"]

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a stage.

    why_not: the reason why nothing could be checked; "" if something was. checks: the number of
        checks. failures: a line for each failed check. left_out: the reason for each part that was
        not run, by name; such a part neither passed nor failed. figures: the measurements.
    """

    checks: int = 0
    failures: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    why_not: str = ""

    @property
    def verdict(self) -> str:
        """Return "passed" only where something was checked and nothing failed."""
        if self.failures:
            return FAILED
        return PASSED if self.checks > 0 and not self.why_not else NOT_RUN

    def as_json(self) -> dict[str, Any]:
        """Return the outcome in the form of a result file."""
        why_not = self.why_not or "nothing was checked"
        return {
            "verdict": self.verdict,
            **({"why_not": why_not} if self.verdict == NOT_RUN else {}),
            "checks": self.checks,
            "failures": list(self.failures),
            "left_out": self.left_out,
            "figures": self.figures,
        }


def exit_status(verdicts: Iterable[str]) -> int:
    """Return 1 where a check failed, else 2 where a stage was not run, else 0."""
    found = set(verdicts)
    if FAILED in found:
        return 1
    return 0 if found == {PASSED} else 2

"""`FakeClock`: time that passes only when a test says so."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """Call it for the time in seconds, as one calls `time.monotonic`."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """The time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass; it never goes back."""
        if seconds < 0:
            raise ValueError(f"seconds is {seconds!r}; time does not go back")
        self._now += seconds

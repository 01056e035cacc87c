"""`FakeClock`: a clock that a test advances."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """A clock in seconds, called as `time.monotonic` is. Time passes only in `advance`."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward. Raises ValueError for negative `seconds`."""
        if seconds < 0:
            raise ValueError(f"seconds is {seconds!r}; time does not go back")
        self._now += seconds

"""`Watchdog`: detects a hung worker from its heartbeats. No clock: it counts its own ticks.

Every heartbeat reports whether the engine has a job, and its progress. A worker hangs if no
heartbeat comes (its process is stopped, or its event loop is stuck), or if its engine has a job and
makes no progress. A worker whose engine has no job may take any time over anything else, such as a
long text, as long as it sends heartbeats. Before its first heartbeat a worker is being started,
which may take longer.
"""

from __future__ import annotations

import math

__all__ = ["Watchdog"]


class Watchdog:
    """Counts ticks without a sign of life. Call `tick` every `period` seconds while the worker has
    work, and `beat` for each of its heartbeats.

    Time is counted in ticks and not read from a clock: a process that was stopped for an hour has
        ticked once, and processes the heartbeats that came meanwhile before it calls the worker
        hung. So each tick must be scheduled when the last one is over, and missed ticks must not be
        made up for.

    hang_timeout: seconds that a worker may be silent, or compute without progress.
    start_timeout: seconds that a worker may take until its first heartbeat.
    period: seconds between two ticks.
    """

    def __init__(self, hang_timeout: float, start_timeout: float, period: float) -> None:
        self._hang_timeout = hang_timeout
        self._start_timeout = start_timeout
        self._most_ticks = math.ceil(hang_timeout / period)
        self._most_ticks_at_start = math.ceil(start_timeout / period)
        self.begin()

    def begin(self) -> None:
        """Begin with another worker, which has not sent a beat."""
        self._was_heard = False
        self.reset()

    def reset(self) -> None:
        """Forget the ticks. For the first request after a time without work."""
        self._progress: int | None = None
        self._is_busy = False
        self._ticks_silent = 0
        self._ticks_stuck = 0

    def beat(self, busy: bool, progress: int) -> None:
        """Process a heartbeat. progress: any number that changes when the engine makes progress."""
        self._was_heard = True
        self._ticks_silent = 0
        if not busy or progress != self._progress:
            self._ticks_stuck = 0
        self._is_busy, self._progress = busy, progress

    def tick(self) -> str | None:
        """Count `period` seconds. Return the reason why the worker counts as hung, or None.

        The limit is one tick more than fits into `hang_timeout`: the first tick may come right
            after a heartbeat, and a worker is not called hung before that time is over.
        """
        self._ticks_silent += 1
        if not self._was_heard:
            if self._ticks_silent > self._most_ticks_at_start:
                return f"it has said nothing for {self._start_timeout:g} s since its start"
            return None
        if self._is_busy:
            self._ticks_stuck += 1
        if self._ticks_silent > self._most_ticks:
            return f"it has not been heard of for hang_timeout = {self._hang_timeout:g} s"
        if self._ticks_stuck > self._most_ticks:
            return (
                "it has been computing without progress for hang_timeout = "
                f"{self._hang_timeout:g} s"
            )
        return None

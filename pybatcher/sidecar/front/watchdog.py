"""`Watchdog`: whether a worker hangs, from its heartbeats. No clock: it counts its own ticks.

A worker tells with every beat whether it computes and how far it has come. It
hangs if it tells nothing any more (its process is stopped, or its loop is
stuck), or if it computes and comes no further (its engine is stuck). Before
its first beat it is being started, which may take longer.
"""

from __future__ import annotations

import math

__all__ = ["Watchdog"]


class Watchdog:
    """Call `tick` every `period` seconds while the worker owes something, `beat` for its beats.

    Time is what the watcher itself lived through, tick by tick, and not what a
    clock says: a watcher that was stopped for an hour has ticked once, and then
    hears the beats that came meanwhile, before it accuses anybody. So the next
    tick must be asked for when one is over, and none made up for.

    hang_timeout: seconds that a worker may be silent, or compute without progress.
    start_timeout: seconds that it may take until its first beat.
    period: seconds between two ticks.
    """

    def __init__(self, hang_timeout: float, start_timeout: float, period: float) -> None:
        self._hang_timeout = hang_timeout
        self._start_timeout = start_timeout
        self._most_ticks = math.ceil(hang_timeout / period)
        self._most_ticks_at_start = math.ceil(start_timeout / period)
        self.begin()

    def begin(self) -> None:
        """Another worker, of which nothing was heard."""
        self._was_heard = False
        self.reset()

    def reset(self) -> None:
        """Forget the ticks: the first request after a time without any."""
        self._progress: int | None = None
        self._is_busy = False
        self._ticks_silent = 0
        self._ticks_stuck = 0

    def beat(self, busy: bool, progress: int) -> None:
        """The worker lives. `progress` is any number that is another one when it came further."""
        self._was_heard = True
        self._ticks_silent = 0
        if not busy or progress != self._progress:
            self._ticks_stuck = 0
        self._is_busy, self._progress = busy, progress

    def tick(self) -> str | None:
        """`period` seconds are over. Why the worker counts as hung, for people; None: it does not.

        More ticks than fit into `hang_timeout`, because the first may come
        right after a beat: nobody is accused before that time is over.
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

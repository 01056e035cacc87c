"""`Backoff`: how long to wait before the next try to connect. Pure: no clock, no sleep."""

from __future__ import annotations

from random import Random

__all__ = ["Backoff"]


class Backoff:
    """No wait at first, then waits that double up to `LONGEST` and are of uneven length.

    Uneven, so that the many clients of a server that restarts do not all come at once. It
    begins anew when the last try is longer ago than the longest wait: so nobody waits after a
    rest, and a server that takes connections and drops them at once is not run at.
    """

    FIRST = 0.05
    LONGEST = 2.0
    """Seconds, before they are shortened by up to a half."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._n_tries = 0
        self._last_try = 0.0

    def delay(self, now: float) -> float:
        """Seconds from `now` (of any clock) to the next try, which is taken to be made then."""
        if now - self._last_try > self.LONGEST:
            self._n_tries = 0
        wait = 0.0
        if self._n_tries:
            most = min(self.LONGEST, self.FIRST * 2.0 ** min(self._n_tries - 1, 16))
            wait = most * self._random.uniform(0.5, 1.0)
        self._n_tries += 1
        self._last_try = now + wait
        return wait

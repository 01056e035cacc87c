"""`Backoff`: seconds until the next try to connect. Pure: no clock, no sleep."""

from __future__ import annotations

from random import Random

__all__ = ["Backoff"]


class Backoff:
    """Delays of 0 at first, then doubling up to a longest one, each shortened at random (jitter).

    Because of the jitter, the many clients of a server that restarts do not all come at once. The
    delays begin anew when the last try is longer ago than the longest delay: a client that has not
    tried for a while does not wait, but one whose server accepts connections and drops them at once
    does.

    longest: the longest delay in seconds, before it is shortened by up to a half.
    """

    FIRST = 0.05
    LONGEST = 2.0

    def __init__(self, random: Random, longest: float = LONGEST) -> None:
        self._random = random
        self._longest = longest
        self._n_tries = 0
        self._last_try = 0.0

    def delay(self, now: float) -> float:
        """Return the seconds from `now` (of any clock) to the next try, and count that try."""
        if now - self._last_try > self._longest:
            self._n_tries = 0
        wait = 0.0
        if self._n_tries:
            most = min(self._longest, self.FIRST * 2.0 ** min(self._n_tries - 1, 16))
            wait = most * self._random.uniform(0.5, 1.0)
        self._n_tries += 1
        self._last_try = now + wait
        return wait

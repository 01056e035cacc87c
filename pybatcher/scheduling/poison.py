"""`PoisonRequests`: after a failed step, each of its requests runs alone until past that point."""

from __future__ import annotations

from collections.abc import Collection

from .request import LiveRequest

__all__ = ["PoisonRequests"]


class PoisonRequests:
    """Finds the one request that makes steps fail, at the price of one more failure.

    A failed step of many does not tell which is poison. So each of its requests becomes a
    candidate and runs alone, one after the other, until it has one token more than it had; in
    sum they compute no more than they would together. The candidate whose step fails is poison.
    The others run together again once all candidates are cleared.
    """

    def __init__(self) -> None:
        self._candidates: list[LiveRequest] = []

    @property
    def current(self) -> LiveRequest | None:
        """The candidate that is to run alone now, or None. Clears those that ended or got past."""
        while self._candidates:
            live = self._candidates[0]
            if not live.ended and live.poison_length >= live.num_tokens:
                return live
            self.clear(live)
        return None

    def step_failed(self, in_step: Collection[LiveRequest]) -> LiveRequest | None:
        """Make candidates of the requests of a failed step.

        Returns the one that is poison, if that is proved: it was alone and a candidate already.
        """
        if len(in_step) == 1:
            (live,) = in_step
            if live.poison_length >= live.num_tokens and not live.ended:
                return live
        for live in in_step:
            if not live.ended:
                if live.poison_length < 0:
                    self._candidates.append(live)
                live.poison_length = live.num_tokens
        return None

    def clear(self, live: LiveRequest) -> None:
        """Make a request a candidate no longer: it got past, has ended, or cannot run alone."""
        live.poison_length = -1
        self._candidates.remove(live)

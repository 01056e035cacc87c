"""`PoisonRequests`: after a step failed, who was in it runs alone until it has come past that point."""

from __future__ import annotations

from collections.abc import Collection

from .request import LiveRequest

__all__ = ["PoisonRequests"]


class PoisonRequests:
    """Finds the one request that makes steps fail, at the price of one more failure.

    A step that fails does not say who of many is the cause. Run alone, one after the other, each
    computes what it had again (in sum that is no more than together) and one token more. Whose
    step fails then is the cause; who has got past is free to go on, when all have.
    """

    def __init__(self) -> None:
        self._suspects: list[LiveRequest] = []

    @property
    def current(self) -> LiveRequest | None:
        """Who is to run alone now; None: nobody has to."""
        while self._suspects:
            live = self._suspects[0]
            if not live.ended and live.suspect_length >= live.num_tokens:
                return live
            self.acquit(live)
        return None

    def put(self, in_step: Collection[LiveRequest]) -> LiveRequest | None:
        """These were in a step that failed. Returns the one that is the cause, if that is clear."""
        if len(in_step) == 1:
            (live,) = in_step
            if live.suspect_length >= live.num_tokens and not live.ended:
                return live
        for live in in_step:
            if not live.ended:
                if live.suspect_length < 0:
                    self._suspects.append(live)
                live.suspect_length = live.num_tokens
        return None

    def acquit(self, live: LiveRequest) -> None:
        """It has come past the point, or ended, or cannot be run alone."""
        live.suspect_length = -1
        self._suspects.remove(live)

"""`PoisonRequests`: runs each request of a failed step alone, to find the one that causes it."""

from __future__ import annotations

from collections.abc import Collection

from ..errors import EngineFailedError
from .prefix import SharedPrefix
from .request import LiveRequest

__all__ = ["PoisonRequests", "poison_error"]


class PoisonRequests:
    """Finds the one request that makes steps fail, at the price of one more failure.

    The failure of a step with several requests does not tell which of them is poison. Each request
    of the step becomes a candidate and runs alone, one after the other, until it has one token more
    than before; together they compute no more rows than in a common step. The candidate whose step
    fails is poison. The others run together again once all candidates are cleared. A shared prefix
    of a failed step is computed alone and completely before any candidate.
    """

    def __init__(self) -> None:
        self._candidates: list[LiveRequest] = []

    @property
    def current(self) -> LiveRequest | None:
        """The candidate that runs alone now, or None. Clears candidates that ended or succeeded."""
        while self._candidates:
            live = self._candidates[0]
            if not live.ended and live.poison_length >= live.num_tokens:
                return live
            self.clear(live)
        return None

    def step_failed(
        self, in_step: Collection[LiveRequest | SharedPrefix]
    ) -> LiveRequest | SharedPrefix | None:
        """Make candidates of the requests, and suspects of the shared prefixes, of a failed step.

        Returns the owner that is poison, if that is proved: it was alone, and was a candidate or a
        suspect already.
        """
        is_alone = len(in_step) == 1
        for owner in in_step:
            if isinstance(owner, SharedPrefix):
                if is_alone and owner.is_suspect:
                    return owner
                owner.is_suspect = True
            elif not owner.ended:
                if is_alone and owner.poison_length >= owner.num_tokens:
                    return owner
                if owner.poison_length < 0:
                    self._candidates.append(owner)
                owner.poison_length = owner.num_tokens
        return None

    def clear(self, live: LiveRequest) -> None:
        """Remove a candidate that succeeded, has ended, or cannot run alone."""
        live.poison_length = -1
        self._candidates.remove(live)


def poison_error(owner: LiveRequest | SharedPrefix, error: BaseException) -> EngineFailedError:
    """Return the error of an owner that is poison. error: the engine's error, its cause."""
    name = "request" if isinstance(owner, LiveRequest) else "shared prefix"
    own = EngineFailedError(
        f"this {name} failed: the engine failed twice when it computed it, the second time with "
        f"it alone in its step: {error!r}"
    )
    own.__cause__ = error
    return own

"""`PoisonCalls`: finds the request that kills workers, among those that were in flight. Pure.

A worker is killed from outside, by the system, or by a defect that one request triggers. A signal
from outside is no evidence. After a first death that is evidence, no call is suspected: all are
resumed together. A call that is in flight again when the next worker dies, and has got no token in
between, may be the cause; after a death from lack of memory, to which requests that get tokens
contribute too, every such call may be. Then all calls that were in flight run one at a time, each
alone in the worker until it has got a token or has ended; a call that is suspected again needs
eight times as many tokens each time. The call that was alone in two workers that died, one after
the other, is the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["PoisonCalls", "Suspect"]

_DEATHS_ALONE = 2
_MORE_TOKENS, _MOST_TOKENS = 8, 512


class Suspect(Protocol):
    """The facts about a call that the search needs.

    seen_length: number of tokens it had when a worker last died with it; -1: none did.
    n_cleared: how often it ran alone and was cleared.
    """

    seen_length: int
    n_cleared: int
    ended: bool

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the call has so far."""


class PoisonCalls:
    """The calls that must run alone, if there are any.

    suspects: if not empty, only the first of them is sent; otherwise all calls are.
    """

    def __init__(self) -> None:
        self.suspects: list[Suspect] = []
        self._deaths_alone = 0  # workers that died with the first suspect alone

    def died(self, in_flight: Sequence[Suspect], *, with_tokens: bool = False) -> Suspect | None:
        """Record the death of a worker with these calls. Return the cause, if it is clear.

        with_tokens: a call that got tokens since the last death may be the cause as well.
        """
        in_flight = [suspect for suspect in in_flight if not suspect.ended]
        if len(in_flight) == 1 and self.suspects[:1] == in_flight:
            self._deaths_alone += 1
            return self._pop() if self._deaths_alone >= _DEATHS_ALONE else None
        were_seen = any(suspect.seen_length >= 0 for suspect in in_flight)
        if (were_seen and with_tokens) or any(map(self._is_stuck, in_flight)):
            known = set(map(id, self.suspects))
            self.suspects += [suspect for suspect in in_flight if id(suspect) not in known]
        for suspect in in_flight:
            suspect.seen_length = suspect.num_tokens
        return None

    def acquit(self) -> Suspect | None:
        """Remove and return the first suspect if it is cleared: it got its tokens, or has ended."""
        if not self.suspects:
            return None
        first = self.suspects[0]
        wanted = min(_MORE_TOKENS**first.n_cleared, _MOST_TOKENS)
        if first.num_tokens < first.seen_length + wanted and not first.ended:
            return None
        first.n_cleared += 1
        return self._pop()

    def _pop(self) -> Suspect:
        self._deaths_alone = 0
        return self.suspects.pop(0)

    @staticmethod
    def _is_stuck(suspect: Suspect) -> bool:
        """Return whether a worker has died with this call and it has got no token since."""
        return suspect.seen_length >= suspect.num_tokens

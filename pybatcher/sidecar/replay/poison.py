"""`PoisonCalls`: finds the request that kills workers, among those that were in flight. Pure.

A worker is killed by somebody, by the system, or by a defect that one request meets. A signal
from outside is no evidence. After a first death that is, nobody is suspected: all go on together.
Who is in flight again when the next worker dies, without having got a token in between, may be
the cause. Then all who were in flight go on one at a time, each alone in the worker until it has
got a token or its end; and who is alone in two workers that die, one after the other, is the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["PoisonCalls", "Suspect"]

_DEATHS_ALONE = 2


class Suspect(Protocol):
    """What is known of a request here.

    seen_length: how many tokens it had when a worker last died with it; -1: none did.
    """

    seen_length: int
    ended: bool

    @property
    def num_tokens(self) -> int:
        """Tokens that it has so far."""


class PoisonCalls:
    """Who has to go on alone, if anybody has.

    The first of `suspects` is the only one to be sent; with none, all are.
    """

    def __init__(self) -> None:
        self.suspects: list[Suspect] = []
        self._deaths_alone = 0  # of the first one

    def died(self, in_flight: Sequence[Suspect]) -> Suspect | None:
        """A worker died with these in flight. Returns the cause, if that is clear."""
        in_flight = [suspect for suspect in in_flight if not suspect.ended]
        if len(in_flight) == 1 and self.suspects[:1] == in_flight and self._is_stuck(in_flight[0]):
            self._deaths_alone += 1
            return self._pop() if self._deaths_alone >= _DEATHS_ALONE else None
        if any(map(self._is_stuck, in_flight)):
            known = set(map(id, self.suspects))
            self.suspects += [suspect for suspect in in_flight if id(suspect) not in known]
        for suspect in in_flight:
            suspect.seen_length = suspect.num_tokens
        return None

    def acquit(self) -> Suspect | None:
        """Whoever went on alone and has got past, or has ended: another's turn has come."""
        if not self.suspects:
            return None
        first = self.suspects[0]
        if self._is_stuck(first) and not first.ended:
            return None
        return self._pop()

    def _pop(self) -> Suspect:
        self._deaths_alone = 0
        return self.suspects.pop(0)

    @staticmethod
    def _is_stuck(suspect: Suspect) -> bool:
        """A worker has died with it before, and it has got no token since."""
        return suspect.seen_length >= suspect.num_tokens

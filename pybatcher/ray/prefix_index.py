"""`PrefixIndex`: the blocks that each replica holds, as a router knows them. Pure."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable
from itertools import takewhile

__all__ = ["PrefixIndex"]

_MOST_ROUTED = 4096
"""Most blocks of a replica that are remembered between two of its reports."""


class PrefixIndex:
    """The blocks of each replica: those it has reported, and those routed to it since.

    Memory is bounded by the reports, which are, and by `_MOST_ROUTED`, for each replica that is
    kept.
    """

    def __init__(self) -> None:
        self._replicas: dict[Hashable, _Replica] = {}

    def __len__(self) -> int:
        return len(self._replicas)

    def keep_only(self, replicas: Collection[Hashable]) -> None:
        """Forget the replicas that are gone."""
        for replica in self._replicas.keys() - set(replicas):
            del self._replicas[replica]

    def reported(self, replica: Hashable, hashes: bytes) -> None:
        """Take a replica's report, as `HeldPrefixes.report` makes it. The same one again is free.

        What was routed before the last report has been noticed or evicted by now: it is dropped.
        """
        known = self._replica(replica)
        if hashes is known.report:
            return
        known.report = hashes
        held = array("Q")
        held.frombytes(hashes[: len(hashes) // held.itemsize * held.itemsize])
        known.held = frozenset(held)
        known.generation += 1
        while known.routed and next(iter(known.routed.values())) < known.generation - 1:
            known.routed.popitem(last=False)

    def routed(self, replica: Hashable, hashes: Iterable[int]) -> None:
        """Note that a prompt with these blocks was routed to a replica."""
        known = self._replica(replica)
        for one in hashes:
            known.routed[one] = known.generation
            known.routed.move_to_end(one)
        while len(known.routed) > _MOST_ROUTED:
            known.routed.popitem(last=False)

    def matched(self, replica: Hashable, hashes: Iterable[int]) -> int:
        """Return how many blocks of a prompt, from its first, a replica holds."""
        known = self._replicas.get(replica)
        if known is None:
            return 0
        held, routed = known.held, known.routed
        return sum(1 for _ in takewhile(lambda one: one in held or one in routed, hashes))

    def _replica(self, replica: Hashable) -> _Replica:
        return self._replicas.setdefault(replica, _Replica())


class _Replica:
    """The blocks of one replica. routed: by hash, the number of reports there were before it."""

    def __init__(self) -> None:
        self.report: bytes | None = None
        self.held: frozenset[int] = frozenset()
        self.routed: OrderedDict[int, int] = OrderedDict()
        self.generation = 0

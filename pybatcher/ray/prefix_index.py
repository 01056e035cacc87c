"""`PrefixIndex`: the blocks that each replica holds, as a router knows them. Pure."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence

from .held_prefixes import n_held

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

    def routed(self, replica: Hashable, hashes: Sequence[int]) -> None:
        """Note that a prompt with these blocks was routed to a replica."""
        known = self._replica(replica)
        for one in reversed(hashes):  # of a prompt, the end is forgotten first
            known.routed[one] = known.generation
            known.routed.move_to_end(one)
        while len(known.routed) > _MOST_ROUTED:
            known.routed.popitem(last=False)

    def matched(self, replica: Hashable, hashes: Sequence[int]) -> int:
        """Return how many blocks of a prompt, from its first, a replica holds."""
        known = self._replicas.get(replica)
        if known is None or not len(hashes):
            return 0
        first, found = hashes[0], 0
        if first in known.held:
            found = n_held(known.held, hashes)
        if first in known.routed:
            found = max(found, n_held(known.routed, hashes))
        return found

    def _replica(self, replica: Hashable) -> _Replica:
        return self._replicas.setdefault(replica, _Replica())


class _Replica:
    """The blocks of one replica. routed: by hash, the number of reports there were before it."""

    def __init__(self) -> None:
        self.report: bytes | None = None
        self.held: frozenset[int] = frozenset()
        self.routed: OrderedDict[int, int] = OrderedDict()
        self.generation = 0

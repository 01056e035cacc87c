"""`PrefixIndex`: a router's knowledge of the blocks that each replica holds. Pure."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence

from .held_prefixes import n_held

__all__ = ["PrefixIndex"]

_MOST_ROUTED = 4096
"""The most blocks of a replica that are remembered between two of its reports."""


class PrefixIndex:
    """The blocks of each replica: those it has reported, and those routed to it since.

    The bounded size of reports and `_MOST_ROUTED` bound the memory for each replica.
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
        """Process a replica's report, as `HeldPrefixes.report` makes it. An equal report costs
        nothing.

        Blocks that were routed before the previous report are dropped: the replica has reported or
        evicted them by now.
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
        """Record that a prompt with these blocks was routed to a replica."""
        known = self._replica(replica)
        for one in reversed(hashes):  # the end of a prompt is forgotten first
            known.routed[one] = known.generation
            known.routed.move_to_end(one)
        while len(known.routed) > _MOST_ROUTED:
            known.routed.popitem(last=False)

    def matched(self, replica: Hashable, hashes: Sequence[int]) -> int:
        """Return the number of leading blocks of a prompt that a replica holds."""
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
    """The blocks of one replica. routed: by hash, the number of reports before the routing."""

    def __init__(self) -> None:
        self.report: bytes | None = None
        self.held: frozenset[int] = frozenset()
        self.routed: OrderedDict[int, int] = OrderedDict()
        self.generation = 0

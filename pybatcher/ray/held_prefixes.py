"""`HeldPrefixes`: the blocks of prompts that a replica's cache is likely to hold. Pure."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

__all__ = ["MOST_REPORTED", "HeldPrefixes"]

MOST_REPORTED = 4096
"""Most blocks of a report: 32 KiB, which the controller passes to each handle."""


class HeldPrefixes:
    """The hashes of the blocks used last, as many as the KV cache has blocks.

    The cache evicts the block that was not used for the longest time, and so does this: it is an
    estimate that costs no look into the engine.

    capacity: number of blocks.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._hashes: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hashes)

    def use(self, hashes: Iterable[int]) -> None:
        """Note that the blocks of a prompt are computed or were found in the cache.

        The first block is the one used last: a prompt is found by its beginning.
        """
        for one in reversed(list(hashes)):
            self._hashes[one] = None
            self._hashes.move_to_end(one)
        while len(self._hashes) > self.capacity:
            self._hashes.popitem(last=False)

    def report(self) -> bytes:
        """Return the hashes used last, MOST_REPORTED at most, 8 bytes each."""
        return array("Q", islice(reversed(self._hashes), MOST_REPORTED)).tobytes()

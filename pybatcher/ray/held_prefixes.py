"""`HeldPrefixes`: the blocks of prompts that a replica's cache is likely to hold. Pure."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from itertools import islice

__all__ = ["MOST_REPORTED", "HeldPrefixes", "n_held"]

MOST_REPORTED = 4096
"""The most blocks of a report: 32 KiB, which the controller passes to each handle."""


class HeldPrefixes:
    """The hashes of the most recently used blocks, as many as the KV cache has blocks.

    Like the cache, it evicts the least recently used block: it estimates the cache's contents
        without a query to the engine.

    capacity: number of blocks.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._hashes: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hashes)

    def use(self, hashes: Iterable[int]) -> None:
        """Record that the blocks of a prompt were computed or found in the cache.

        The first block counts as the most recently used, since a prompt is found by its beginning.
        """
        for one in reversed(list(hashes)):
            self._hashes[one] = None
            self._hashes.move_to_end(one)
        while len(self._hashes) > self.capacity:
            self._hashes.popitem(last=False)

    def matched(self, hashes: Sequence[int]) -> int:
        """Return the number of leading blocks of a prompt that are held."""
        return n_held(self._hashes, hashes)

    def report(self) -> bytes:
        """Return the most recently used hashes, at most MOST_REPORTED, 8 bytes each."""
        return array("Q", islice(reversed(self._hashes), MOST_REPORTED)).tobytes()


def n_held(held: Container[int], hashes: Sequence[int]) -> int:
    """Return the number of leading blocks of a prompt that are held.

    held: if it contains a block, it contains all blocks before it, because the ends of prompts are
        evicted first. A binary search therefore suffices.
    """
    low, high = 0, len(hashes)
    if not high or hashes[0] not in held:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if hashes[middle - 1] in held:
            low = middle
        else:
            high = middle - 1
    return low

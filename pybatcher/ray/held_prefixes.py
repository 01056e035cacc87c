"""`HeldPrefixes`: the blocks of prompts that a replica's cache is likely to hold. Pure."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from itertools import islice

__all__ = ["MOST_REPORTED", "HeldPrefixes", "n_held"]

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

    def matched(self, hashes: Sequence[int]) -> int:
        """Return how many blocks of a prompt, from its first, are held."""
        return n_held(self._hashes, hashes)

    def report(self) -> bytes:
        """Return the hashes used last, MOST_REPORTED at most, 8 bytes each."""
        return array("Q", islice(reversed(self._hashes), MOST_REPORTED)).tobytes()


def n_held(held: Container[int], hashes: Sequence[int]) -> int:
    """Return how many blocks of a prompt, from its first, are held.

    held: with a block, it has all those before it: their ends are forgotten first. So a few places
    are looked at, and not all of a long prompt.
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

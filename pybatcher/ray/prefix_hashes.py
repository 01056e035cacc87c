"""`prefix_hashes`: one hash for each block of a prompt's beginning, for routing. Pure.

The hash of a block covers its tokens and the hash before it: two prompts have the same hash at a
    position if all their tokens up to the block's end and their namespaces are equal.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

__all__ = ["BLOCK", "prefix_hashes"]

BLOCK = 32
"""Tokens of a block: as many as in a KV block, by default."""

_BYTES = 8


def prefix_hashes(tokens: Sequence[int], namespace: str | None, most: int) -> array[int]:
    """Return the hashes of the whole blocks at the beginning of `tokens`, at most `most`."""
    hashes = array("Q")
    last = blake2b((namespace or "").encode("utf-8", "replace"), digest_size=_BYTES).digest()
    for start in range(0, min(len(tokens) // BLOCK, most) * BLOCK, BLOCK):
        data = array("q", tokens[start : start + BLOCK]).tobytes()
        last = blake2b(last + data, digest_size=_BYTES).digest()
        hashes.append(int.from_bytes(last, "little"))
    return hashes

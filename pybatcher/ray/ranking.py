"""`ranked`: orders replicas for a request, by their cached prefixes and their load. Pure.

The router of Ray Serve and `bench.simulate --replicas` use this function.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["IMBALANCE", "ranked"]

IMBALANCE = 8.0
"""The most requests above the least busy replica at which one is still chosen for a prefix."""


def ranked(
    loads: Sequence[float], matched: Sequence[int], *, imbalance: float = IMBALANCE, turn: int = 0
) -> list[int]:
    """Return the indices of replicas, the best one first.

    The longest prefix wins among replicas whose load is near the lowest load; then the lower load.
    Busier replicas come last, by load, so that prefix affinity does not build a queue.

    loads (n,): requests in flight at each replica. matched (n,): blocks of the prompt that it
        holds.
    imbalance: most requests above the least load.
    turn: rotates equals, so that the first replica is not preferred; any number.
    """
    n = len(loads)
    if not n:
        return []
    near = min(loads) + imbalance

    def worth(i: int) -> tuple[bool, int, float, int]:
        is_busy = loads[i] > near
        return is_busy, 0 if is_busy else -matched[i], loads[i], (i - turn) % n

    return sorted(range(n), key=worth)

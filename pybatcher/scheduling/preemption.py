"""Victim policies: each picks the request that loses its KV when KV runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from .containment import WorkFor
from .kv_allocator import KvAllocator
from .request import LiveRequest

__all__ = ["VICTIM_POLICIES", "VictimPolicy"]

_NEEDED_SOON = 4  # one of this many generating requests needs a block in the next steps

VictimPolicy = Callable[[Sequence[LiveRequest], KvAllocator], LiveRequest]
"""Picks a victim among the requests that hold KV, at least one. The most senior is not among the
candidates unless it is alone, so that one request finishes under any policy."""


def _youngest(candidates: Sequence[LiveRequest], kv: KvAllocator) -> LiveRequest:
    """Pick the least senior request, so that requests near their end keep their KV."""
    return max(candidates, key=attrgetter("seniority", "number"))


def _lowest_priority(candidates: Sequence[LiveRequest], kv: KvAllocator) -> LiveRequest:
    """Pick the request with the highest value of `priority`, the latest among equals."""
    return max(candidates, key=attrgetter("request.priority", "submitted", "number"))


def _cheapest(candidates: Sequence[LiveRequest], kv: KvAllocator) -> LiveRequest:
    """Pick the least senior request that frees a block for every four requests that hold KV.

    Freed blocks stay cached until others take them. The tokens that are computed again are
    therefore those of the blocks that are taken, from any request; blocks that another sequence
    shares neither cost nor give anything. A policy can only save the next preemption: a victim with
    few blocks of its own is soon followed by another. If no request frees that many blocks, the
    request that frees most is picked.
    """
    enough = -(-len(candidates) // _NEEDED_SOON)
    best, best_rank = candidates[0], (-1, 0.0, 0)
    with WorkFor("count its KV blocks") as work:
        for work.owner in candidates:
            live = work.owner
            blocks = kv.seq_exclusive_blocks(live.seq_id)
            rank = (min(blocks, enough), live.seniority, live.number)
            if rank > best_rank:
                best, best_rank = live, rank
    return best


VICTIM_POLICIES: dict[str, VictimPolicy] = {
    "youngest": _youngest,
    "priority": _lowest_priority,
    "cheapest": _cheapest,
}
"""The policies by their names in `SchedulerConfig.victim_policy`."""

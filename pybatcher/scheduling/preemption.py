"""Victim policies: which request gives up its KV when there is too little of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from .containment import WorkFor
from .kv_allocator import KvAllocator
from .request import LiveRequest

__all__ = ["VICTIM_POLICIES", "VictimPolicy"]

_NEEDED_SOON = 4  # of so many generating requests one will need a block in the next steps

VictimPolicy = Callable[[Sequence[LiveRequest], KvAllocator], LiveRequest]
"""Picks a victim of at least one request that holds KV. The most senior is not among them,
unless it is alone: so whatever is picked, some request gets to its end."""


def _youngest(candidates: Sequence[LiveRequest], kv: KvAllocator) -> LiveRequest:
    """Pick the least senior request: those nearest to their ends keep their KV."""
    return max(candidates, key=attrgetter("seniority", "number"))


def _lowest_priority(candidates: Sequence[LiveRequest], kv: KvAllocator) -> LiveRequest:
    """Pick the request with the highest value of `priority`, and of those the latest."""
    return max(candidates, key=attrgetter("request.priority", "submitted", "number"))


def _cheapest(candidates: Sequence[LiveRequest], kv: KvAllocator) -> LiveRequest:
    """Pick the least senior request that frees a block for every four requests that hold KV.

    Freed blocks stay cached until others take them. So the tokens computed again are those of the
    blocks that are taken, whichever request they were taken from; blocks that another sequence
    shares cost and give nothing. What a policy can save is the next preemption: a victim with few
    blocks of its own would be followed by another soon. Where no request frees so many, the one
    that frees most is picked.
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

"""Victim policies: which request gives up its KV when there is too little of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from .containment import WorkFor
from .kv_allocator import KvAllocator
from .request import LiveRequest

__all__ = ["VICTIM_POLICIES", "VictimPolicy"]

_NEEDED_SOON = 4  # of so many who generate one will need a block in the next steps

VictimPolicy = Callable[[Sequence[LiveRequest], KvAllocator], LiveRequest]
"""Picks a victim of at least one request that holds KV. The most senior is not among them,
unless it is alone: so whatever is picked, some request gets to its end."""


def _youngest(candidates: Sequence[LiveRequest], kv: KvAllocator) -> LiveRequest:
    """The least senior: what is nearest to its end is left alone."""
    return max(candidates, key=attrgetter("seniority", "number"))


def _lowest_priority(candidates: Sequence[LiveRequest], kv: KvAllocator) -> LiveRequest:
    """The highest value of `priority`, and of those the latest."""
    return max(candidates, key=attrgetter("request.priority", "submitted", "number"))


def _cheapest(candidates: Sequence[LiveRequest], kv: KvAllocator) -> LiveRequest:
    """The least senior of those who free a block for every four that hold KV.

    What a victim frees stays cached until others take it, so what will be computed again is what
    they take, whoever it was taken from; blocks that somebody else holds cost and give nothing.
    What can be saved is the next preemption: a victim with few blocks of its own would be followed
    by another soon. Where no request has so many, whoever frees most.
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
"""By the name of `SchedulerConfig.victim_policy`."""

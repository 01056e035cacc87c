"""Who gives up its KV when there is too little of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .kv_allocator import KvAllocator
from .request import LiveRequest

__all__ = ["VICTIM_POLICIES", "VictimPolicy"]

_NEEDED_SOON = 4  # of so many who generate one will need a block in the next steps

VictimPolicy = Callable[[Sequence[LiveRequest], KvAllocator], LiveRequest]
"""Picks a victim of those who hold KV, at least one. The most senior is not among
them, unless it is alone: so whatever is picked, somebody gets to its end."""


def _youngest(candidates: Sequence[LiveRequest], kv: KvAllocator) -> LiveRequest:
    """The least senior: what is nearest to its end is left alone."""
    return max(candidates, key=lambda live: (live.seniority, live.number))


def _lowest_priority(candidates: Sequence[LiveRequest], kv: KvAllocator) -> LiveRequest:
    """The highest value of `priority`, and of those the latest."""
    return max(candidates, key=lambda live: (live.request.priority, live.submitted, live.number))


def _cheapest(candidates: Sequence[LiveRequest], kv: KvAllocator) -> LiveRequest:
    """The least senior of those who free a block for every four that hold KV.

    What a victim frees stays cached until others take it, so what will be computed again is what
    they take, whoever it was taken from; blocks that somebody else holds cost and give nothing.
    What can be saved is the next preemption: a victim with few blocks of its own would be followed
    by another soon. Where nobody has so many, whoever frees most.
    """

    def rank(live: LiveRequest) -> tuple[int, float, int]:
        blocks = kv.seq_exclusive_blocks(live.seq_id)
        return (min(blocks, enough), live.seniority, live.number)

    enough = -(-len(candidates) // _NEEDED_SOON)
    return max(candidates, key=rank)


VICTIM_POLICIES: dict[str, VictimPolicy] = {
    "youngest": _youngest,
    "priority": _lowest_priority,
    "cheapest": _cheapest,
}
"""By the name of `SchedulerConfig.victim_policy`."""

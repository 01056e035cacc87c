from __future__ import annotations

import asyncio

from pybatcher.serving.fair_slots import FairSlots


async def waiting(slots: FairSlots, tenants: str) -> list[asyncio.Task[None]]:
    """Calls of tenants with names of one letter, each of which waits for a slot or has it."""
    tasks = [asyncio.create_task(slots.acquire(tenant)) for tenant in tenants]
    await asyncio.sleep(0.001)
    return tasks


def served(tasks: list[asyncio.Task[None]], tenants: str) -> str:
    return "".join(name for name, task in zip(tenants, tasks, strict=True) if task.done())


async def test_a_tenant_holds_no_more_than_its_part() -> None:
    slots, names = FairSlots(4, 2), "aaaabbbc"
    tasks = await waiting(slots, names)
    assert served(tasks, names) == "aabb"
    slots.release("a")
    await asyncio.sleep(0.001)
    assert served(tasks, names) == "aabbc", "c holds none, and the others have their part"
    slots.release("c")
    await asyncio.sleep(0.001)
    assert served(tasks, names) == "aaabbc"
    for name in "aabb":
        slots.release(name)
        await asyncio.sleep(0.001)
    assert served(tasks, names) == names
    for name in "ab":
        slots.release(name)
    assert slots.n_held == 0


async def test_tenants_that_hold_equally_many_take_turns() -> None:
    slots, names = FairSlots(1, 1), "aaaabbcc"
    order: list[str] = []

    async def work(name: str) -> None:
        await slots.acquire(name)
        order.append(name)
        await asyncio.sleep(0)
        slots.release(name)

    await asyncio.gather(*(work(name) for name in names))
    assert "".join(order) == "aabcabca"


async def test_a_call_that_leaves_takes_no_slot() -> None:
    slots = FairSlots(1, 1)
    first, second, third = await waiting(slots, "aab")
    second.cancel()
    await asyncio.wait([second])
    slots.release("a")
    third.cancel()  # it has been given the slot, and does not know it yet
    await asyncio.wait([third])
    assert first.done()
    assert slots.n_held == 0
    assert not slots._waiting
    await slots.acquire("a")
    assert slots.n_held == 1

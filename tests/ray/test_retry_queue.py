"""Who tries full replicas again, and when."""

from __future__ import annotations

import asyncio

from pybatcher.ray import retry_queue as module
from pybatcher.ray.retry_queue import RetryQueue


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_nobody_waits_where_nobody_was_refused() -> None:
    room = RetryQueue()
    await room.enter()
    room.try_next()
    await room.enter()


async def test_those_that_wait_take_turns_and_a_refused_one_stays_first() -> None:
    room, order = RetryQueue(), []

    async def one(name: str, refusals: int = 0, *, is_new: bool = True) -> None:
        if is_new:
            await room.enter()
        for _ in range(refusals):
            order.append(f"{name} refused")
            await room.refused()
        order.append(name)

    tasks = [asyncio.create_task(one("a", 2))]
    await settle()
    tasks += [asyncio.create_task(one("b", 1)), asyncio.create_task(one("c"))]
    await settle()
    assert order == ["a refused"]
    for _ in range(4):
        room.try_next()
        await settle()
    assert order == ["a refused", "a refused", "a", "b refused", "b"]
    room.try_next()
    await asyncio.gather(*tasks)
    assert order[-1] == "c"


async def test_a_cancelled_one_does_not_use_up_a_turn() -> None:
    room = RetryQueue()
    first, second = (asyncio.create_task(room.refused()) for _ in range(2))
    await settle()
    second.cancel()
    await settle()
    room.try_next()
    await asyncio.wait_for(first, 5)


async def test_one_tries_again_after_a_while(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "_PERIOD", 0.01)
    room = RetryQueue()
    await asyncio.wait_for(asyncio.gather(*(room.refused() for _ in range(3))), 5)
    assert room._timer is None or not room._waiting

"""`map_bounded`: many requests of one caller, a limited number of them in flight at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

__all__ = ["map_bounded"]

T = TypeVar("T")
R = TypeVar("R")


async def map_bounded(
    function: Callable[[T], Awaitable[R]], items: Sequence[T], limit: int
) -> list[R]:
    """Await `function(item)` of each item, at most `limit` at a time; return results in order.

    The first exception cancels the other calls and is raised.
    """
    results: dict[int, R] = {}
    numbered = iter(enumerate(items))

    async def work() -> None:
        for i, item in numbered:
            results[i] = await function(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(limit, len(items))):
                tasks.create_task(work())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [results[i] for i in range(len(items))]

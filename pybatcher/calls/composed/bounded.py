"""`map_bounded`: awaits many requests of one caller, a limited number of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ...errors import QueueFullError

__all__ = ["map_bounded", "retry_beside_others"]

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


def retry_beside_others(
    function: Callable[[T], Awaitable[R]],
) -> Callable[[T], Awaitable[R]]:
    """Wrap `function` for the items of one list, so that they do not fail because of each other.

    An item that finds the queue full tries again while other items of the list are in flight. If it
    is the only one, other callers have filled the queue, and QueueFullError is raised.
    """
    n_tried = 0

    async def call_when_there_is_room(item: T) -> R:
        nonlocal n_tried
        while True:
            n_tried += 1
            try:
                return await function(item)
            except QueueFullError as error:
                if n_tried == 1:
                    raise
                wait = error.retry_after
            finally:
                n_tried -= 1
            await asyncio.sleep(min(wait, _LONGEST_WAIT))

    return call_when_there_is_room


_LONGEST_WAIT = 0.1
"""Seconds until a prompt of a list tries again: other prompts of the list may have ended by then.
"""

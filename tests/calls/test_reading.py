"""`Reading`: held while one of its holders says so; watchers hear of each change once."""

from __future__ import annotations

import asyncio

from pybatcher.calls.reading import CURRENT_READING, Reading


def test_it_is_held_while_one_holder_says_so() -> None:
    reading, told = Reading(), list[bool]()
    reading.watch(told.append)
    assert not reading.is_held
    reading.release("nobody")
    assert told == []
    reading.hold("a")
    reading.hold("a")
    reading.hold("b")
    assert reading.is_held
    reading.release("a")
    assert told == [True]
    reading.release("b")
    reading.release("b")
    assert not reading.is_held
    assert told == [True, False]


def test_who_watches_no_more_hears_nothing() -> None:
    reading, told, others = Reading(), list[bool](), list[bool]()
    unwatch = reading.watch(told.append)
    reading.watch(lambda is_held: is_held and unwatch())  # while they are told
    reading.watch(others.append)
    reading.hold("a")
    reading.release("a")
    assert told == [True]
    assert others == [True, False]


async def test_calls_of_one_task_and_of_those_that_it_starts_share_one() -> None:
    async def started() -> Reading | None:
        return CURRENT_READING.get()

    async def one() -> tuple[Reading | None, ...]:
        own = Reading()
        CURRENT_READING.set(own)
        return own, CURRENT_READING.get(), await asyncio.create_task(started())

    own, *others = await asyncio.create_task(one())
    assert all(other is own for other in others)
    assert CURRENT_READING.get() is None  # in a task that has set none

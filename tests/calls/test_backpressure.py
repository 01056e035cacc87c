"""`Backpressure` is paused while a holder pauses it; watchers are called once per change."""

from __future__ import annotations

import asyncio

from pybatcher.calls.backpressure import CURRENT_BACKPRESSURE, Backpressure


def test_it_is_paused_while_one_holder_pauses_it() -> None:
    backpressure, told = Backpressure(), list[bool]()
    backpressure.watch(told.append)
    assert not backpressure.is_paused
    backpressure.resume("nobody")
    assert told == []
    backpressure.pause("a")
    backpressure.pause("a")
    backpressure.pause("b")
    assert backpressure.is_paused
    backpressure.resume("a")
    assert told == [True]
    backpressure.resume("b")
    backpressure.resume("b")
    assert not backpressure.is_paused
    assert told == [True, False]


def test_a_removed_watcher_is_not_called() -> None:
    backpressure, told, others = Backpressure(), list[bool](), list[bool]()
    unwatch = backpressure.watch(told.append)
    backpressure.watch(lambda is_paused: is_paused and unwatch())  # while they are told
    backpressure.watch(others.append)
    backpressure.pause("a")
    backpressure.resume("a")
    assert told == [True]
    assert others == [True, False]


async def test_calls_of_one_task_and_of_those_that_it_starts_share_one() -> None:
    async def started() -> Backpressure | None:
        return CURRENT_BACKPRESSURE.get()

    async def one() -> tuple[Backpressure | None, ...]:
        own = Backpressure()
        CURRENT_BACKPRESSURE.set(own)
        return own, CURRENT_BACKPRESSURE.get(), await asyncio.create_task(started())

    own, *others = await asyncio.create_task(one())
    assert all(other is own for other in others)
    assert CURRENT_BACKPRESSURE.get() is None  # in a task that has set none

"""`priority`: who is served first, from every way in; waiting makes up for it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from batcher_helpers import PATIENCE, until, wait_for

from pybatcher import BlockingBatcher, RequestEvent
from pybatcher.testing import FakeClock, FakeEngine, fake_batcher

PROMPT = "Once upon a time"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
MESSAGES = [{"role": "user", "content": PROMPT}]
AGING = 10.0


async def order_of_service(asked: list[tuple[int, float]]) -> list[int]:
    """Of callers with these priorities, each asking so many seconds after the one before."""
    clock, served, go_on = FakeClock(), [], threading.Event()
    engine = FakeEngine(n_parallel=1, before_step=lambda plan: wait_for(go_on))
    async with fake_batcher(engine, clock=clock, batch_size=1, priority_aging=AGING) as batcher:

        async def ask(i: int, priority: int) -> None:
            await batcher.generate(f"{PROMPT} {i}", max_tokens=1, priority=priority)
            served.append(i)

        tasks = [asyncio.create_task(batcher.generate(PROMPT, max_tokens=1))]
        await until(lambda: batcher.statistics().running == 1)
        for i, (priority, later) in enumerate(asked):
            clock.advance(later)
            tasks.append(asyncio.create_task(ask(i, priority)))
            await until(lambda n=i + 1: batcher.statistics().queued == n)
        go_on.set()
        await asyncio.gather(*tasks)
    return served


async def test_the_lower_the_sooner() -> None:
    assert await order_of_service([(0, 0.0), (1, 0.0), (-1, 0.0), (1000, 0.0)]) == [2, 0, 1, 3]


@pytest.mark.parametrize(("waited", "served"), [(AGING / 2, [1, 0]), (AGING * 1.5, [0, 1])])
async def test_waiting_makes_up_for_it(waited: float, served: list[int]) -> None:
    assert await order_of_service([(1, 0.0), (0, waited)]) == served


async def test_it_is_told_of_from_every_way_in() -> None:
    events: list[RequestEvent] = []
    async with fake_batcher(chat_template=TEMPLATE) as batcher:
        batcher.attach(lambda e: events.append(e) if isinstance(e, RequestEvent) else None)
        await batcher.generate(PROMPT, max_tokens=1)
        await batcher.generate(PROMPT, max_tokens=1, priority=1)
        await batcher.chat(MESSAGES, max_tokens=1, priority=2)
        assert [piece async for piece in batcher.stream(PROMPT, max_tokens=1, priority=3)]
        assert [piece async for piece in batcher.stream_chat(MESSAGES, max_tokens=1, priority=4)]
        remote = batcher.threadsafe
        await asyncio.wrap_future(remote.generate(PROMPT, max_tokens=1, priority=-1))
    assert [event.priority for event in events] == [0, 1, 2, 3, 4, -1]


def test_without_asyncio() -> None:
    events: list[RequestEvent] = []
    with BlockingBatcher.over(fake_batcher(chat_template=TEMPLATE)) as batcher:
        batcher.attach(lambda e: events.append(e) if isinstance(e, RequestEvent) else None)
        batcher.generate(PROMPT, max_tokens=1, priority=1)
        batcher.chat(MESSAGES, max_tokens=1, priority=2)
        assert list(batcher.stream(PROMPT, max_tokens=1, priority=3))
        assert list(batcher.stream_chat(MESSAGES, max_tokens=1, priority=4, timeout=PATIENCE))
    assert [event.priority for event in events] == [1, 2, 3, 4]

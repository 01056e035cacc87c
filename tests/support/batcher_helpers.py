"""Waiting, in tests of the batcher: for a state of things, never for a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

PATIENCE = 30.0  # seconds after which a test has failed


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


def wait_for(event: threading.Event) -> None:
    """Block this thread until the event."""
    assert event.wait(PATIENCE)


def acquire(semaphore: threading.Semaphore) -> None:
    """Block this thread until the semaphore is free."""
    assert semaphore.acquire(timeout=PATIENCE)

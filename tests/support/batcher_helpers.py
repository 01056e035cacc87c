"""Waiting, in tests of the batcher: for a state of things, never for a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from pybatcher.serving.mailbox import Mailbox

PATIENCE = 30.0  # seconds after which a test has failed


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


def note_waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """What every coordinator waits for from now on: seconds, or None for mail and nothing else.

    A further entry says that it has been woken up, has handled what there was, and waits again.
    """
    waits: list[float | None] = []
    wait = Mailbox.wait

    async def noting(self: Mailbox, seconds: float | None) -> None:
        waits.append(seconds)
        await wait(self, seconds)

    monkeypatch.setattr(Mailbox, "wait", noting)
    return waits


async def wakes(waits: list[float | None], n: int = 3) -> None:
    """Until the coordinator of `note_waits` has been woken up so often."""
    after = len(waits) + n
    await until(lambda: len(waits) >= after)


def wait_for(event: threading.Event) -> None:
    """Block this thread until the event."""
    assert event.wait(PATIENCE)


def acquire(semaphore: threading.Semaphore) -> None:
    """Block this thread until the semaphore is free."""
    assert semaphore.acquire(timeout=PATIENCE)

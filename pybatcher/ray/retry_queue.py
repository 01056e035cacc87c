"""`RetryQueue`: the queue of requests that full replicas have refused."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["RetryQueue"]

_PERIOD = 0.25  # seconds between tries, if no event of this process indicates a free place


class RetryQueue:
    """The requests of one process that full replicas have refused, the longest waiting first.

    The first request tries again when another has ended or was accepted, as there may be room for
    more, and every `_PERIOD`, because other processes and new replicas free places too. Waiting
    costs almost nothing, whatever the number of requests, and no request overtakes another.
    Constructed on its loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self) -> None:
        """Wait behind all waiting requests; return at once if there are none."""
        if self._waiting:
            await self._wait(is_first=False)

    async def refused(self) -> None:
        """Wait to try again, before all others, since this request was first."""
        await self._wait(is_first=True)

    def try_next(self) -> None:
        """Let the next request try, because there may be room."""
        while self._waiting:
            if not (turn := self._waiting.popleft()).done():  # its task may be cancelled
                turn.set_result(None)
                return

    async def _wait(self, *, is_first: bool) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        (self._waiting.appendleft if is_first else self._waiting.append)(turn)
        if self._timer is None:
            self._timer = self._loop.call_later(_PERIOD, self._tick)
        await turn

    def _tick(self) -> None:
        self.try_next()
        self._timer = self._loop.call_later(_PERIOD, self._tick) if self._waiting else None

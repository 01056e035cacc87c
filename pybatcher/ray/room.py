"""`Room`: whose turn it is to be sent to replicas that were full a moment ago."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Room"]

_PERIOD = 0.25  # seconds between tries, where nothing here says that a place is free


class Room:
    """The requests of one process that full replicas have refused, the longest waiting first.

    One tries again when another has ended or was taken, for then there may be room for more, and
    every `_PERIOD`: places are freed by other processes, and by new replicas. So those that wait
    cost next to nothing, however many they are, and nobody overtakes them. Made on its loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self) -> None:
        """Wait behind all that wait; return at once where nobody does."""
        if self._waiting:
            await self._wait(is_first=False)

    async def refused(self) -> None:
        """Wait to try again, before all others: it was this one's turn."""
        await self._wait(is_first=True)

    def try_next(self) -> None:
        """Let the next one try: there may be room."""
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

"""Callers of all kinds: waiting ones, slow readers, and those that leave in some way."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from pybatcher import (
    Batcher,
    DeadlineExceededError,
    PybatcherError,
    QueueFullError,
    RequestTooLongError,
)

__all__ = ["KINDS", "Callers"]

_WORDS = ("Once ", "upon ", "a time ", "there ", "was ", "a ", "kite", ", ", "é", "🙂", "\n")
_SHARED = "Once upon a time there was a small fox who lived at the edge of a forest. " * 4


class Callers:
    """Send requests to a batcher, each as a random kind of caller.

    endings: number of requests by kind and ending. surprises: errors that no caller should get.
    """

    def __init__(self, batcher: Batcher, seed: int) -> None:
        self._batcher = batcher
        self._random = random.Random(seed)
        self.endings: Counter[str] = Counter()
        self.surprises: Counter[str] = Counter()

    async def ask(self) -> None:
        """Run one request to its end; record the ending."""
        kind = self._random.choice(list(KINDS))
        try:
            ending = await KINDS[kind](self)
        except DeadlineExceededError:
            ending = "expired"
        except QueueFullError:
            ending = "refused"
        except PybatcherError as error:
            self.surprises[f"{kind}: {error!r}"] += 1
            ending = "error"
        self.endings[f"{kind}: {ending}"] += 1

    def _prompt(self) -> str:
        shared = _SHARED * (self._random.random() < 0.4)
        return shared + "".join(self._random.choices(_WORDS, k=self._random.randint(1, 80)))

    def _options(self) -> dict[str, Any]:
        rng = self._random
        return {
            "max_tokens": rng.randint(1, 64),
            "temperature": rng.choice([0.0, 1.0]),
            "seed": rng.randrange(2**32),
            "namespace": rng.choice([None, None, "a", "b"]),
        }

    async def _generate(self) -> str:
        return (await self._batcher.generate(self._prompt(), **self._options())).finish_reason

    async def _deadline(self) -> str:
        timeout = self._random.uniform(0.001, 0.2)
        done = await self._batcher.generate(self._prompt(), **self._options(), timeout=timeout)
        return done.finish_reason

    async def _cancel(self) -> str:
        task = asyncio.create_task(self._batcher.generate(self._prompt(), **self._options()))
        await asyncio.sleep(self._random.choice([0.0, self._random.uniform(0.0, 0.2)]))
        task.cancel()
        try:
            return (await task).finish_reason
        except asyncio.CancelledError:
            return "cancelled"

    async def _slow_reader(self) -> str:
        async with self._batcher.stream(self._prompt(), **self._options()) as stream:
            async for _ in stream:
                await asyncio.sleep(self._random.uniform(0.0, 0.05))
        return "read"

    async def _leave_early(self) -> str:
        stream = self._batcher.stream(self._prompt(), **self._options())
        wanted = self._random.randint(1, 10)
        async for _ in stream:
            wanted -= 1
            if not wanted:
                break
        await stream.aclose()
        return "left"

    async def _drop(self) -> str:
        stream = self._batcher.stream(self._prompt(), **self._options())
        await anext(stream, None)
        return "dropped"  # is never closed: the garbage collector takes the stream

    async def _never_read(self) -> str:
        self._batcher.stream(self._prompt(), **self._options())
        return "not read"

    async def _too_long(self) -> str:
        room = self._batcher.runtime.engine.max_sequence_length
        try:
            await self._batcher.generate([1] * (room + 1))
        except RequestTooLongError:
            return "refused"
        return "was answered"


KINDS: dict[str, Callable[[Callers], Awaitable[str]]] = {
    "generate": Callers._generate,
    "deadline": Callers._deadline,
    "cancel": Callers._cancel,
    "slow reader": Callers._slow_reader,
    "leave early": Callers._leave_early,
    "drop": Callers._drop,
    "never read": Callers._never_read,
    "too long": Callers._too_long,
}
"""The kinds of callers."""

"""`RandomLoad`: callers who ask this and that, at random, so that there is something to watch."""

from __future__ import annotations

import asyncio
import random

from ..batcher import Batcher
from ..errors import DeadlineExceededError, EngineFailedError, QueueFullError, RequestTooLongError
from ..models import DEMO_PROMPTS

__all__ = ["RandomLoad"]

THINKING = 0.05  # seconds between an answer and the next question, on average
SHARE_OF_LEAVERS = 0.1  # callers who go before their answer is whole
SHARE_OF_HASTY = 0.1  # callers with a deadline
LONGEST_PATIENCE = 0.5  # seconds to such a deadline, at most
MOST_TEXTS = 4  # of which a prompt is put together

TEXTS = [
    prompt if isinstance(prompt, str) else " ".join(message["content"] for message in prompt)
    for prompt in DEMO_PROMPTS
]


class RandomLoad:
    """So many callers, each with one request at a time. The same questions every time.

    max_tokens: of the longest answer.
    """

    def __init__(self, batcher: Batcher, n_callers: int, max_tokens: int) -> None:
        self._batcher = batcher
        self._n_callers = n_callers
        self._max_tokens = max_tokens

    async def run(self) -> None:
        """Until it is cancelled, or the batcher serves nobody any more: that error is raised."""
        try:
            async with asyncio.TaskGroup() as callers:
                for i in range(self._n_callers):
                    callers.create_task(self._ask_on_and_on(i))
        except ExceptionGroup as group:
            first = group.exceptions[0]
            raise first from first.__cause__

    async def _ask_on_and_on(self, number: int) -> None:
        draw = random.Random(number)
        while True:
            await asyncio.sleep(draw.expovariate(1 / THINKING))
            try:
                await self._ask(draw)
            except QueueFullError as error:
                await asyncio.sleep(error.retry_after)
            except (DeadlineExceededError, RequestTooLongError):
                pass
            except EngineFailedError:
                if not self._batcher.health().ok:
                    raise

    async def _ask(self, draw: random.Random) -> None:
        prompt = " ".join(draw.sample(TEXTS, draw.randint(1, MOST_TEXTS)))
        max_tokens = draw.randint(1, self._max_tokens)
        leaves_after = draw.randrange(max_tokens) if draw.random() < SHARE_OF_LEAVERS else None
        hasty = draw.random() < SHARE_OF_HASTY
        timeout = LONGEST_PATIENCE * (1 - draw.random()) if hasty else None
        n_pieces = 0
        async with self._batcher.stream(prompt, max_tokens=max_tokens, timeout=timeout) as pieces:
            async for _ in pieces:
                n_pieces += 1
                if n_pieces == leaves_after:
                    return

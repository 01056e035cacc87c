"""`RandomLoad`: a reproducible random load of concurrent callers, for `pybatcher top`."""

from __future__ import annotations

import asyncio
import random

from ..batcher import Batcher
from ..errors import DeadlineExceededError, EngineFailedError, QueueFullError, RequestTooLongError
from ..models import DEMO_PROMPTS

__all__ = ["RandomLoad"]

THINK_TIME = 0.05  # mean seconds between an answer and the caller's next request
CANCELLED_SHARE = 0.1  # share of requests that are cancelled before their answer is complete
DEADLINE_SHARE = 0.1  # share of requests that have a timeout
MAX_TIMEOUT = 0.5  # seconds
MAX_TEXTS = 4  # texts that make up a prompt

TEXTS = [
    prompt if isinstance(prompt, str) else " ".join(message["content"] for message in prompt)
    for prompt in DEMO_PROMPTS
]


class RandomLoad:
    """`n_callers` callers, each with one request at a time; the same requests in every run.

    max_tokens: upper limit of an answer's random length.
    """

    def __init__(self, batcher: Batcher, n_callers: int, max_tokens: int) -> None:
        self._batcher = batcher
        self._n_callers = n_callers
        self._max_tokens = max_tokens

    async def run(self) -> None:
        """Run until cancelled. Raises EngineFailedError if the batcher has failed for good."""
        try:
            async with asyncio.TaskGroup() as callers:
                for i in range(self._n_callers):
                    callers.create_task(self._run_caller(i))
        except ExceptionGroup as group:
            first = group.exceptions[0]
            raise first from first.__cause__

    async def _run_caller(self, number: int) -> None:
        draw = random.Random(number)
        while True:
            await asyncio.sleep(draw.expovariate(1 / THINK_TIME))
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
        prompt = " ".join(draw.sample(TEXTS, draw.randint(1, MAX_TEXTS)))
        max_tokens = draw.randint(1, self._max_tokens)
        cancel_after = draw.randrange(max_tokens) if draw.random() < CANCELLED_SHARE else None
        has_deadline = draw.random() < DEADLINE_SHARE
        timeout = MAX_TIMEOUT * (1 - draw.random()) if has_deadline else None
        n_pieces = 0
        async with self._batcher.stream(prompt, max_tokens=max_tokens, timeout=timeout) as pieces:
            async for _ in pieces:
                n_pieces += 1
                if n_pieces == cancel_after:
                    return

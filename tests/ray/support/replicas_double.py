"""Replicas in this process, which die when a test says so."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

from typing_extensions import override

from pybatcher import Batcher
from pybatcher.ray.replica import Replica
from pybatcher.ray.replicas import Message, Params, ReplicaLostError, Replicas, Routing
from pybatcher.testing import fake_batcher

__all__ = ["ReplicasDouble", "replicas_double"]


class ReplicasDouble(Replicas):
    """Calls go to the replicas in turn; all that crosses is pickled, as with Ray.

    lives: of each call in turn, the number of lists of messages after which its replica dies with
        it. Calls after these are not harmed.
    """

    def __init__(self, replicas: list[Replica], batchers: list[Batcher]) -> None:
        self.replicas, self.batchers = replicas, batchers
        self.lives: list[int] = []
        self.routings: list[Routing] = []
        self.params: list[Any] = []
        self.n_asked = 0
        self.lost_questions = 0
        self.is_silent = False

    @override
    async def stream(
        self, method: str, params: Params, routing: Routing
    ) -> AsyncGenerator[list[Message]]:
        replica = self.replicas[len(self.routings) % len(self.replicas)]
        self.routings.append(routing)
        self.params.append(params)
        left = self.lives.pop(0) if self.lives else 10**9
        if self.is_silent:
            await asyncio.Event().wait()
        answers = replica.stream(
            method, _sent(params), prefix=routing.prefix, fingerprint=routing.fingerprint
        )
        async with aclosing(answers):
            async for messages in answers:
                if left == 0:
                    raise ReplicaLostError("killed by the test")
                left -= 1
                yield _sent(messages)

    @override
    async def ask(self, method: str, params: Params) -> Message:
        self.n_asked += 1
        if self.lost_questions:
            self.lost_questions -= 1
            raise ReplicaLostError("killed by the test")
        return await self.replicas[self.n_asked % len(self.replicas)].ask(method, _sent(params))

    @override
    async def ask_all(self, method: str, params: list[Any]) -> list[Message]:
        return [await one.ask(method, _sent(params)) for one in self.replicas]


@asynccontextmanager
async def replicas_double(n: int = 2, **options: Any) -> AsyncIterator[ReplicasDouble]:
    """Replicas over fake engines, or over `engines` of one's own."""
    async with AsyncExitStack() as stack:
        options = {"n_ctx": 4096, "n_parallel": 8, "block_size": 16, **options}
        batchers = [await stack.enter_async_context(fake_batcher(**options)) for _ in range(n)]
        replicas = [Replica(one) for one in batchers]
        for replica in replicas:
            await replica.start()
        yield ReplicasDouble(replicas, batchers)


def _sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))

"""A sidecar inside the test: sessions over a batcher of this process, behind a real unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from session_helpers import ServiceOf

from pybatcher import Batcher
from pybatcher.calls.call import Question
from pybatcher.sidecar.protocol.connection import Limits
from pybatcher.sidecar.session.session import ServerSession

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
MESSAGES = [{"role": "user", "content": "Once upon a time"}]
LONG = {"max_tokens": 8000, "ignore_eos": True}


class _CountingService(ServiceOf):
    def __init__(self, batcher: Batcher, owner: SmallSidecar) -> None:
        super().__init__(batcher)
        self._owner = owner

    async def ask(self, question: Question[Any]) -> Any:
        self._owner.n_questions += 1
        return await super().ask(question)


class SmallSidecar:
    """Listens until closed. What it serves from goes on: another may take its place."""

    def __init__(self, path: Path, batcher: Batcher, limits: Limits) -> None:
        self.path = path
        self.batcher = batcher
        self.n_connections = self.n_questions = 0
        self.sessions: set[ServerSession] = set()
        self._limits = limits
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._session, self.path)

    async def listen_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.listen()

    def _session(self) -> ServerSession:
        self.n_connections += 1
        session = ServerSession(
            _CountingService(self.batcher, self),
            limits=self._limits,
            hello_limits={},
            on_end=self.sessions.discard,
        )
        self.sessions.add(session)
        return session

    def hang_up(self) -> None:
        """Drop all connections, as a process does that is killed. It still listens."""
        for session in list(self.sessions):
            session.abort()

    async def close(self) -> None:
        """Be gone, with the socket file."""
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)  # Pythons since 3.13 do it
            self._server = None
        self.hang_up()
        async with asyncio.timeout(30.0):
            while self.sessions:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.001)


@asynccontextmanager
async def sidecar(
    path: Path, batcher: Batcher, limits: Limits | None = None
) -> AsyncIterator[SmallSidecar]:
    """A sidecar that listens, over a batcher that runs already."""
    one = SmallSidecar(path, batcher, limits or Limits())
    await one.listen()
    try:
        yield one
    finally:
        await one.close()


def n_running(batcher: Batcher) -> int:
    """Requests without an end."""
    counts = batcher.statistics()
    return counts.running + counts.queued


async def raised_by(call: Callable[[], Any]) -> Exception:
    """What goes wrong with it."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - it is looked at by the caller
        await call()
    return caught.value

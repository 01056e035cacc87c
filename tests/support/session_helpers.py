"""A client of a `ServerSession` that knows msgpack and nothing of ours."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack
from batcher_helpers import PATIENCE, until

from pybatcher import Batcher
from pybatcher.calls.call import Call, CallService, Question
from pybatcher.calls.reply import Reply
from pybatcher.calls.telemetry import Handler
from pybatcher.sidecar.session.session import ServerSession

Frame = list[Any]


class Peer:
    """Sends what it is told to, and keeps what comes until somebody asks for it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=2**30)
        self._kept: list[Frame] = []
        self._n_requests = 0

    def send(self, frame: object) -> None:
        self.writer.write(msgpack.packb(frame, unicode_errors="surrogatepass"))

    def request(self, method: str, *params: Any) -> int:
        self._n_requests += 1
        self.send([0, self._n_requests, method, list(params)])
        return self._n_requests

    def notify(self, method: str, *params: Any) -> None:
        self.send([2, method, list(params)])

    async def frame(self) -> Frame:
        """The next that comes, or that was kept. EOFError: there is none."""
        return self._kept.pop(0) if self._kept else await self._read()

    async def rest(self) -> list[Frame]:
        """All that comes until the server hangs up."""
        frames = []
        try:
            while True:
                frames.append(await self.frame())
        except (EOFError, ConnectionError):
            return frames

    async def answer(self, msgid: int) -> Frame:
        """[error, result] of a request. What comes before is kept."""
        for i, frame in enumerate(self._kept):
            if frame[:2] == [1, msgid]:
                return self._kept.pop(i)[2:]
        while True:
            frame = await self._read()
            if frame[:2] == [1, msgid]:
                return frame[2:]
            self._kept.append(frame)

    async def ask(self, method: str, *params: Any) -> Any:
        """The result of a request that goes well."""
        error, result = await self.answer(self.request(method, *params))
        assert error is None, error
        return result

    async def fail(self, method: str, *params: Any) -> dict[str, Any]:
        """The error of a request that does not."""
        error, result = await self.answer(self.request(method, *params))
        assert result is None, result
        return dict(error)

    def notifications(self, method: str) -> list[Any]:
        """The params of those that were kept, and are no more."""
        found = [frame[2] for frame in self._kept if frame[:2] == [2, method]]
        self._kept = [frame for frame in self._kept if frame[:2] != [2, method]]
        return found

    async def _read(self) -> Frame:
        async with asyncio.timeout(PATIENCE):
            while True:
                for frame in self._unpacker:
                    return list(frame)
                data = await self._reader.read(65536)
                if not data:
                    raise EOFError
                self._unpacker.feed(data)


class ServiceOf(CallService):
    """The service of a started batcher, to be watched or held up by a test."""

    def __init__(self, batcher: Batcher) -> None:
        self.service = batcher._running_service()

    async def submit(self, call: Call, reply: Reply) -> range:
        return await self.service.submit(call, reply)

    def cancel(self, request_ids: range) -> None:
        self.service.cancel(request_ids)

    async def ask(self, question: Question[Any]) -> Any:
        return await self.service.ask(question)

    def attach(self, handler: Handler) -> Callable[[], None]:
        return self.service.attach(handler)


@asynccontextmanager
async def connected(
    service: CallService, **options: Any
) -> AsyncIterator[tuple[ServerSession, Peer]]:
    """A session over a socketpair, and its client. At the end the client hangs up."""
    its_end, clients_end = socket.socketpair()
    ended: list[int] = []  # not the session itself, which would be kept by what it calls
    session = ServerSession(service, on_end=lambda session: ended.append(id(session)), **options)
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_unix_connection(sock=clients_end)
    await loop.create_connection(lambda: session, sock=its_end)
    try:
        yield session, Peer(reader, writer)
    finally:
        writer.transport.abort()
        await until(lambda: ended == [id(session)])
        assert session.n_in_flight == 0

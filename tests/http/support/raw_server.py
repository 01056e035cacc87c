"""The HTTP server over a small application, spoken to in bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pybatcher.http.server.http_server import HttpServer

__all__ = ["GET", "App", "Served", "served", "until_cut"]

GET = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
DEFAULTS = {"max_connections": 4, "backlog": 4, "request_timeout": 1e6}


class App:
    """Answers with "done", requests for /slow when `go` is set, for /large with a megabyte.

    n_begun: counts them. bodies, paths: of all of them.
    """

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.n_begun = 0
        self.bodies: list[bytes] = []
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.n_begun += 1
        self.paths.append(scope["path"])
        body, message = b"", {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
        self.bodies.append(body)
        if scope["path"] == "/slow":
            await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64 if scope["path"] == "/large" else 0):
            await send({"type": "http.response.body", "body": b"x" * 2**16, "more_body": True})
        await send({"type": "http.response.body", "body": b"done"})


class Served:
    def __init__(self, server: HttpServer, app: Any, port: int) -> None:
        self.server, self.app, self._port = server, app, port
        self.url = f"http://127.0.0.1:{port}"
        self.writers: list[asyncio.StreamWriter] = []

    async def send(self, data: bytes) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.writers.append(writer)
        writer.write(data)
        await writer.drain()
        return reader

    async def close(self) -> None:
        self.server.abort()
        await self.server.gone()
        for writer in self.writers:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def served(app: Any = None, **options: Any) -> AsyncIterator[Served]:
    """Serve an application; None: an `App`."""
    app = app or App()
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    server = HttpServer(app, **{**DEFAULTS, **options})
    await server.start([sock])
    running = Served(server, app, sock.getsockname()[1])
    try:
        yield running
    finally:
        await running.close()


async def until_cut(reader: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(60.0):  # a server that cuts nothing
            return await reader.read()
    except ConnectionError:
        return b""

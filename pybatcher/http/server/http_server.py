"""`HttpServer`: serves an ASGI application on sockets, in the running event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn
from typing_extensions import override

from ..base.http_error import HttpError, refusal
from .http_protocol import ConnectionLimits, HttpProtocol

__all__ = ["HttpServer"]

_KEEP_ALIVE = 30  # seconds; longer than most clients' pools keep an idle connection
_MAX_HEAD = 2**16  # bytes
_REQUEST_TIMEOUT = 30.0  # seconds


class HttpServer:
    """Serves an application from `start` until `close_soon`; `gone` waits for the last answer.

    max_connections: if they are exceeded, a new connection replaces the oldest one without a
        complete request head. If there is none, requests of new connections receive 503. Beyond
        twice as many, new connections are cut, because other parts of the process need file
        descriptors. Clients cause no log lines.
    backlog: connections that wait to be accepted.
    admit: called with the transport of each new connection. False: the connection is cut.
    request_timeout: as in `ConnectionLimits`.
    """

    def __init__(
        self,
        app: Any,
        *,
        max_connections: int,
        backlog: int,
        admit: Callable[[asyncio.BaseTransport], bool] = lambda _: True,
        request_timeout: float = _REQUEST_TIMEOUT,
    ) -> None:
        self._app = app
        self._most_served = max_connections
        self._admit = admit
        self._strangers: dict[HttpProtocol, None] = {}  # without a complete head, the oldest first
        limits = ConnectionLimits(
            admit=self._takes,
            known=lambda connection: self._strangers.pop(connection, None),
            choose_app=self._app_of_one_more,
            max_head=_MAX_HEAD,
            request_timeout=request_timeout,
        )
        protocol: Any = partial(HttpProtocol, limits=limits)
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            backlog=1,  # asyncio tries to accept so many in a turn, even after a failure
        )
        self._backlog = backlog
        self._server = _SignalsLeftAlone(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def n_connections(self) -> int:
        """Number of open connections."""
        return len(self._server.server_state.connections)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on these listening sockets. They are closed at the end."""
        serving = self._server.serve(sockets=list(sockets))
        self._task = asyncio.create_task(serving, name="pybatcher-http")
        while not (self._server.started or self._task.done()):  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0)
        if self._server.started:
            for sock in sockets:
                sock.listen(self._backlog)

    def close_soon(self) -> None:
        """Accept no new connections or requests, and finish the present ones."""
        self._server.should_exit = True
        if self._server.started:
            for server in self._server.servers:  # at once; uvicorn would do it at its next tick
                server.close()

    async def gone(self) -> None:
        """Wait until no connection is left. Raises the error of the server."""
        if self._task is not None:
            await asyncio.shield(self._task)

    def abort(self) -> None:
        """Cut all connections now, which cancels their requests."""
        self.close_soon()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    def _takes(self, connection: HttpProtocol) -> bool:
        if not self._admit(connection.transport):
            return False
        if self.n_connections > self._most_served and self._strangers:
            self._cut(next(iter(self._strangers)))
        if self.n_connections > 2 * self._most_served:
            return False
        self._strangers[connection] = None
        return True

    def _cut(self, stranger: HttpProtocol) -> None:
        """Cut a connection. It stops counting now, before the event loop reports its end."""
        del self._strangers[stranger]
        self._server.server_state.connections.discard(stranger)
        stranger.transport.abort()

    def _app_of_one_more(self) -> Any:
        """Return the application for a new connection, which is counted already.

        It is chosen once per connection, so that later crowds do not affect earlier clients.
        """
        return self._app if self.n_connections <= self._most_served else self._refuse

    async def _refuse(self, scope: Any, receive: Any, send: Any) -> None:
        await refusal(_too_many(self._most_served), scope)(scope, receive, send)


def _too_many(most: int) -> HttpError:
    return HttpError(
        503,
        f"there are max_connections = {most} already",
        type="server_error",
        code="overloaded",
        headers={"retry-after": "1", "connection": "close"},
    )


class _SignalsLeftAlone(uvicorn.Server):
    """uvicorn's server without signal handlers, which belong to the owner of the process."""

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

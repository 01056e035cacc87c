"""`SocketListener`: serves clients that use MessagePack-RPC over a unix socket."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from itertools import count
from typing import Any

from typing_extensions import override

from ...machine.cgroups import free_memory
from ..protocol.address import default_socket_path
from ..protocol.connection import Limits
from ..protocol.tenant import connection_tenant
from ..session.peers import may_connect, peer_uid
from ..session.session import ServerSession
from .front import Front
from .listener import Listener
from .listening import ListeningSocket, inherited_socket, open_socket
from .named_models import socket_of
from .serve_config import ServeConfig

__all__ = ["SocketListener"]

_LOGGER = logging.getLogger("pybatcher.sidecar")
_LEAVES_THE_FILE: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""The server leaves the socket's file: `ListeningSocket` removes it, if it is still its own."""


class SocketListener(Listener):
    """Has a session for each client.

    Constructed with a socket that already listens: the one from an init system, or one at the path
        of the configuration. Raises ConfigError if neither is possible.

    model: the model that its clients call.
    """

    def __init__(self, config: ServeConfig, model: str) -> None:
        self._config = config
        self._allow_uids = config.allow_uids
        self._model = model
        self._listening = _listen(config, model)
        self._limits = Limits(
            free_memory=free_memory,
            max_frame=config.max_frame,
            max_depth=config.max_depth,
            max_in_flight=config.max_in_flight,
        )
        self._address = str(self._listening.sock.getsockname())
        self._sessions: dict[ServerSession, int | None] = {}  # with the user's id
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._server: asyncio.Server | None = None
        self._connection_numbers = count(1)

    @property
    @override
    def addresses(self) -> Mapping[str, str]:
        return {"socket": self._address}

    @property
    @override
    def n_connections(self) -> int:
        return len(self._sessions)

    @override
    def serves(self, model: str) -> bool:
        return model == self._model

    @override
    async def start(self, fronts: Mapping[str, Front]) -> None:
        self._front = fronts[self._model]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            self._session, sock=self._listening.sock, backlog=1, **_LEAVES_THE_FILE
        )
        # asyncio tries to accept `backlog` connections in a turn, even after a failure
        self._listening.sock.listen(self._config.max_connections)

    @override
    def use(self, config: ServeConfig) -> None:
        self._allow_uids = config.allow_uids
        self._listening.admit(config.allow_uids)
        for session, uid in list(self._sessions.items()):
            if not may_connect(uid, config.allow_uids):
                session.abort()

    @override
    def close_soon(self) -> None:
        self.close()  # new clients are refused, and may reach the next server
        for session in list(self._sessions):
            session.close_soon()

    @override
    async def gone(self) -> None:
        await self._all_gone.wait()

    @override
    def abort(self) -> None:
        for session in list(self._sessions):
            session.abort()

    @override
    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._listening.close()

    # -- clients ----------------------------------------------------------------------------

    def _session(self) -> ServerSession:
        return ServerSession(
            self._front,
            limits=self._limits,
            hello_limits={"max_connections": self._config.max_connections},
            admit=self._admit,
            on_end=self._session_over,
            tenant=connection_tenant(next(self._connection_numbers)),
            logs_access=True,
        )

    def _admit(self, session: ServerSession, transport: asyncio.BaseTransport) -> str | None:
        """Admit a new connection. Return the reason for a refusal; None if it is admitted."""
        uid = peer_uid(transport.get_extra_info("socket"))
        if not may_connect(uid, self._allow_uids):
            _LOGGER.warning("a process of user %s was turned away", uid, extra={"uid": uid})
            return "this user may not connect"
        if len(self._sessions) >= self._config.max_connections:
            _LOGGER.warning("more than max_connections = %d", self._config.max_connections)
            return f"there are max_connections = {self._config.max_connections} already"
        self._sessions[session] = uid
        self._all_gone.clear()
        return None

    def _session_over(self, session: ServerSession) -> None:
        self._sessions.pop(session, None)
        if not self._sessions:
            self._all_gone.set()


def _listen(config: ServeConfig, model: str) -> ListeningSocket:
    inherited = inherited_socket(os.environ, os.getpid())
    if inherited is not None:
        return ListeningSocket(inherited)
    path = socket_of(str(config.socket or default_socket_path(os.environ)), model)
    return open_socket(path, backlog=config.max_connections, allow_uids=config.allow_uids)

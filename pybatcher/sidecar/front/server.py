"""`Server`: the front process: its socket, its clients, its signals and its shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from ...errors import BatcherClosedError, PybatcherError
from ..protocol.address import default_socket_path
from ..protocol.connection import Limits
from ..protocol.tenant import connection_tenant
from ..session.peers import may_connect, peer_uid
from ..session.session import ServerSession
from .front import Front
from .listening import (
    ListeningSocket,
    inherited_socket,
    open_socket,
)
from .notify import Notifier
from .serve_config import ServeConfig
from .worker_spec import WorkerSpec

__all__ = ["Server"]

_LOGGER = logging.getLogger("pybatcher.sidecar")
_FAILED = 1
_INTERRUPTED = 130
_LEAVES_THE_FILE: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""The server leaves the socket's file: `ListeningSocket` removes it, if it is still its own."""

_HANG_UP_GRACE = 1.0
"""Seconds that clients have to read their last answers."""


class Server:
    """Serves clients from `run` until a signal ends it, or until no worker can be started.

    changes: called on the loop at a SIGHUP; returns the changes of the reload. None: SIGHUP starts
        a new worker with the same options.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        config: ServeConfig,
        changes: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self._spec = spec
        self._config = config
        self._changes = changes
        self._limits = Limits(
            max_frame=config.max_frame,
            max_depth=config.max_depth,
            max_in_flight=config.max_in_flight,
        )
        self._sessions: set[ServerSession] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._n_interrupts = 0
        self._connection_numbers = count(1)

    async def run(self) -> int:
        """Serve. Returns the exit status.

        Raises ConfigError or ModelFormatError where the server cannot start.
        """
        self._loop = asyncio.get_running_loop()
        self._told_to_end = asyncio.Event()
        self._told_to_stop = asyncio.Event()
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._notifier = Notifier.from_environ(os.environ)
        listening = self._listen()
        try:
            self._front = Front(self._spec, self._config, lambda: len(self._sessions))
            server = await self._loop.create_unix_server(
                self._session, sock=listening.sock, **_LEAVES_THE_FILE
            )
            self._handle_signals()
            try:
                return await self._serve(server, listening)
            finally:
                server.close()
                await self._front.close(BatcherClosedError("the sidecar has ended"))
        finally:
            listening.close()

    def _listen(self) -> ListeningSocket:
        inherited = inherited_socket(os.environ, os.getpid())
        if inherited is not None:
            return ListeningSocket(inherited)
        config = self._config
        path = config.socket or default_socket_path(os.environ)
        return open_socket(path, backlog=config.max_connections, allow_uids=config.allow_uids)

    # -- from start to end ------------------------------------------------------------------

    async def _serve(self, server: asyncio.Server, listening: ListeningSocket) -> int:
        name = listening.sock.getsockname()
        _LOGGER.info("listening on %s", name, extra={"socket": name})
        failed = self._front.failed
        ending = self._loop.create_task(self._told_to_end.wait())
        opening = self._loop.create_task(self._front.opened())
        try:
            await asyncio.wait({opening, ending}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
                self._notifier.ready()
                either: set[asyncio.Future[Any]] = {failed, ending}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            self._notifier.stopping()
            if not failed.done():
                server.close()  # new clients are refused, and may find the next server
                listening.close()
                await self._drain()
        finally:
            opening.cancel()
            ending.cancel()
            await self._hang_up_all()
        if failed.done():
            _LOGGER.critical("%s", failed.result())
            return _FAILED
        return _INTERRUPTED if self._told_to_stop.is_set() else 0

    async def _drain(self) -> None:
        """Wait for the calls in flight, until `drain_timeout` or a second Ctrl-C."""
        _LOGGER.info("ending: %d calls in flight are being finished", self._front.n_in_flight)
        for session in list(self._sessions):
            session.close_soon()
        done = self._loop.create_task(self._all_gone.wait())
        stop = self._loop.create_task(self._told_to_stop.wait())
        limit = self._config.drain_timeout
        await asyncio.wait({done, stop}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            _LOGGER.warning("%d calls were not finished", self._front.n_in_flight)
            await self._front.close(
                BatcherClosedError("the sidecar was told to end before this request was finished")
            )
        done.cancel()
        stop.cancel()

    async def _hang_up_all(self) -> None:
        """Let clients read their last answers, then close all connections."""
        for session in list(self._sessions):
            session.close_soon()
        with suppress(TimeoutError):
            async with asyncio.timeout(_HANG_UP_GRACE):
                await self._all_gone.wait()
        for session in list(self._sessions):
            session.abort()

    # -- clients ----------------------------------------------------------------------------

    def _session(self) -> ServerSession:
        return ServerSession(
            self._front,
            limits=self._limits,
            hello_limits={"max_connections": self._config.max_connections},
            admit=self._admit,
            on_end=self._session_over,
            tenant=connection_tenant(next(self._connection_numbers)),
        )

    def _admit(self, session: ServerSession, transport: asyncio.BaseTransport) -> str | None:
        """Take a new connection. Returns why it is refused; None: it is taken."""
        uid = peer_uid(transport.get_extra_info("socket"))
        if not may_connect(uid, self._config.allow_uids):
            _LOGGER.warning("a process of user %s was turned away", uid, extra={"uid": uid})
            return "this user may not connect"
        if len(self._sessions) >= self._config.max_connections:
            _LOGGER.warning("more than max_connections = %d", self._config.max_connections)
            return f"there are max_connections = {self._config.max_connections} already"
        self._sessions.add(session)
        self._all_gone.clear()
        return None

    def _session_over(self, session: ServerSession) -> None:
        self._sessions.discard(session)
        if not self._sessions:
            self._all_gone.set()

    # -- signals ----------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        self._loop.add_signal_handler(signal.SIGTERM, self._told_to_end.set)
        self._loop.add_signal_handler(signal.SIGINT, self._interrupt)
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _interrupt(self) -> None:
        self._n_interrupts += 1
        self._told_to_end.set()
        if self._n_interrupts > 1:
            self._told_to_stop.set()

    def _hang_up(self) -> None:
        if self._told_to_end.is_set():
            return
        task = self._loop.create_task(self._reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self) -> None:
        self._notifier.reloading()
        try:
            changes = {} if self._changes is None else self._changes()
        except PybatcherError as error:
            _LOGGER.warning("not reloaded, all is as it was: %s", error)
        else:
            with suppress(PybatcherError):  # logged by the front
                await self._front.reload(dict(changes))
        self._notifier.ready()

"""`HttpListener`: serves clients over HTTP, on TCP or a unix socket."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from typing_extensions import override

from ...errors import ConfigError
from ...errors.distribution import install_extra
from ..session.peers import may_connect, peer_uid
from .api_keys import read_api_keys
from .front import Front
from .listener import Listener
from .listening import ListeningSocket, open_socket
from .own_client import OwnClient
from .serve_config import ServeConfig
from .tcp import is_loopback, listen_on, read_address, url_of

if TYPE_CHECKING:
    from ...http.server.http_server import HttpServer
    from ...http.watch.live_feed import Watchers

__all__ = ["HttpListener"]

_LOGGER = logging.getLogger("pybatcher.sidecar")


class HttpListener(Listener):
    """Serves the application of `pybatcher.http` over the front's own calls.

    Constructed with sockets that already listen. Raises ConfigError if a socket cannot be opened,
    if the keys cannot be read, if other machines could connect without a key, and without the
    packages of the extra `http`.
    """

    def __init__(self, config: ServeConfig) -> None:
        _import_http()
        self._config = config
        self._allow_uids = config.allow_uids
        self._addresses: dict[str, str] = {}
        self._sockets: list[socket.socket] = []
        self._file: ListeningSocket | None = None
        self._users: WeakKeyDictionary[asyncio.BaseTransport, int | None] = WeakKeyDictionary()
        self._server: HttpServer | None = None
        self._watchers: Watchers | None = None
        with ExitStack() as opened:
            self._listen(opened)
            self._closes = opened.pop_all()

    def _listen(self, opened: ExitStack) -> None:
        config = self._config
        if (address := read_address(config.http)) is not None:
            sockets = listen_on(address, backlog=config.max_connections)
            for sock in sockets:
                opened.callback(sock.close)
            self._sockets += sockets
            self._addresses["url"] = url_of(sockets[0])
        if config.uds is not None:
            file = self._file = open_socket(
                config.uds, backlog=config.max_connections, allow_uids=config.allow_uids
            )
            opened.callback(file.close)
            self._sockets.append(file.sock)
            self._addresses["uds"] = str(file.path)
        self._keys = self.read_keys(config)

    @property
    @override
    def addresses(self) -> Mapping[str, str]:
        return self._addresses

    @property
    @override
    def n_connections(self) -> int:
        return 0 if self._server is None else self._server.n_connections

    def read_keys(
        self, config: ServeConfig, *, regular_only: bool = False
    ) -> tuple[str, ...] | None:
        """Return the current keys in the file of the configuration; None if it names no file.

        regular_only: as in `read_option_file`. Raises ConfigError, also if other machines could
        connect without a key.
        """
        if config.api_key_file is not None:
            return read_api_keys(config.api_key_file, regular_only=regular_only)
        of_tcp = (sock for sock in self._sockets if sock.family != socket.AF_UNIX)
        if config.allow_no_key or all(map(is_loopback, of_tcp)):
            return None
        raise ConfigError(
            f"http is {self._config.http!r}, which other machines may reach, and no key is asked "
            "for: give api_key_file, or allow_no_key where all who can connect may"
        )

    def use_keys(self, keys: tuple[str, ...] | None) -> None:
        """Require one of these keys from new requests; None requires none."""
        self._known_keys.replace(keys)
        if self._watchers is not None:
            self._watchers.send_away()  # the page reconnects with a key that is valid now

    @override
    def use(self, config: ServeConfig) -> None:
        self._allow_uids = config.allow_uids
        self._origins.replace(config.allow_origins, config.allow_hosts)
        if self._file is not None:
            self._file.admit(config.allow_uids)
        for transport, uid in list(self._users.items()):
            if not may_connect(uid, config.allow_uids):
                transport.abort()  # type: ignore[attr-defined]  # of a socket

    @override
    async def start(self, fronts: Mapping[str, Front]) -> None:
        from ...http import application
        from ...http.middleware.api_keys import ApiKeys
        from ...http.middleware.origins import AllowedOrigins
        from ...http.server.http_server import HttpServer

        clients = {name: OwnClient(front) for name, front in fronts.items()}
        for client in clients.values():
            await client.start()
        self._known_keys = ApiKeys(self._keys)
        self._origins = AllowedOrigins(self._config.allow_origins, self._config.allow_hosts)
        app = application(
            clients,
            api_keys=self._known_keys,
            max_body=self._config.max_frame,
            allow_origins=self._origins,
            allow_image_hosts=self._config.allow_image_hosts,
        )
        self._watchers = app.state.watchers
        most = self._config.max_connections
        self._server = HttpServer(app, max_connections=most, backlog=most, admit=self._may)
        await self._server.start(self._sockets)

    @override
    def close_soon(self) -> None:
        if self._watchers is not None:
            self._watchers.send_away()
        if self._server is not None:
            self._server.close_soon()
        self.close()

    @override
    async def gone(self) -> None:
        if self._server is not None:
            await self._server.gone()

    @override
    def abort(self) -> None:
        if self._server is not None:
            self._server.abort()

    @override
    def close(self) -> None:
        self._closes.close()

    # -- clients ----------------------------------------------------------------------------

    def _may(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether a new connection is accepted; over a unix socket, by its user."""
        sock = transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            return True
        uid = peer_uid(sock)
        if may_connect(uid, self._allow_uids):
            self._users[transport] = uid
            return True
        _LOGGER.warning("a process of user %s was turned away", uid, extra={"uid": uid})
        return False


def _import_http() -> None:
    """Raise ConfigError without the packages that HTTP needs."""
    try:
        from ...http.server import http_server as _  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"http and uds need packages that are not there ({error}): {install_extra('http')}"
        ) from error

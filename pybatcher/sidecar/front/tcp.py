"""TCP addresses: parses `HOST:PORT`, listens there, and tells loopback addresses from others."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from typing import NamedTuple

from ...errors import ConfigError

__all__ = ["TcpAddress", "is_loopback", "listen_on", "read_address", "url_of"]

_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^:\[\]\s]+)):(?P<port>[0-9]{1,5})")
_ABSENT = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
"""A name may have addresses that this machine lacks, such as ::1 without IPv6."""


class TcpAddress(NamedTuple):
    """A host, by name or number, and a port; 0 for any free port."""

    host: str
    port: int


def read_address(text: object) -> TcpAddress | None:
    """Return the address in a text; None if it is invalid. IPv6: `[::1]:8000`."""
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    if found is None or int(found["port"]) > 65535:
        return None
    return TcpAddress(found["v6"] or found["host"], int(found["port"]))


def listen_on(address: TcpAddress, *, backlog: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of the host, at one port, non-blocking.

    backlog: connections that wait to be accepted. Raises ConfigError.
    """
    host, port = address
    shown = f"http, which is '{host}:{port}',"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"{shown} names a host that is not known: {error.strerror}") from error
    except UnicodeError as error:
        raise ConfigError(f"{shown} names a host that cannot be one: {error}") from error
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, _, _, _, where in dict.fromkeys(found):
            at = (where[0], port, *where[2:])
            try:
                sockets.append(_listening(family, at, backlog))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error
                continue
            # port of the first socket, if any port was requested
            port = sockets[0].getsockname()[1]
        if not sockets and absent is not None:
            raise absent
    except OSError as error:
        for sock in sockets:
            sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"{shown} is in use by another process; end it, or choose another port"
            ) from error
        raise ConfigError(f"{shown} cannot be listened on: {error.strerror}") from error
    return sockets


def _listening(family: int, address: tuple[object, ...], backlog: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def is_loopback(sock: socket.socket) -> bool:
    """Return whether only processes of this machine reach a socket that listens."""
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def url_of(sock: socket.socket) -> str:
    """Return the URL of a server over HTTP, without a slash at the end."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

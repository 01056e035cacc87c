"""The process and user at the other end of a unix socket, and whether the user may connect."""

from __future__ import annotations

import os
import socket
import struct
from asyncio.trsock import TransportSocket
from collections.abc import Collection

__all__ = ["may_connect", "peer_credentials", "peer_uid"]

_UCRED = struct.Struct("iII")  # pid, uid, gid: struct ucred of unix(7)
_NO_UID = 2**32 - 1  # of a socket that is not connected


def peer_uid(sock: socket.socket | TransportSocket) -> int | None:
    """Return the user id of the process that connected, as the kernel noted it, or None.

    sock: also what a transport's `get_extra_info("socket")` returns, on any event loop.
    """
    credentials = peer_credentials(sock)
    return None if credentials is None else credentials[1]


def peer_credentials(
    sock: socket.socket | TransportSocket,
) -> tuple[int, int] | None:
    """Return process id and user id of the process that connected, or that listened; or None.

    The process id is 0 for a process of a pid namespace that is not visible here.
    """
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except (AttributeError, OSError):  # not Linux; not a connected unix socket
        return None
    pid, uid, _ = _UCRED.unpack(raw)
    return None if uid == _NO_UID else (pid, uid)


def may_connect(uid: int | None, allow_uids: Collection[int]) -> bool:
    """Return whether a user is served: the one of this process or of `allow_uids`. Root is not."""
    return uid is not None and (uid == os.geteuid() or uid in allow_uids)

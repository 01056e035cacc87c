"""Who is at the other end of a unix socket, and whether they may be."""

from __future__ import annotations

import os
import socket
import struct
from asyncio.trsock import TransportSocket
from collections.abc import Collection

__all__ = ["may_connect", "peer_credentials", "peer_uid"]

_UCRED = struct.Struct("iII")  # pid, uid, gid: struct ucred of unix(7)
_NOBODY = 2**32 - 1  # of a socket that is not connected


def peer_uid(sock: socket.socket | TransportSocket) -> int | None:
    """The user id of the process that connected, as the kernel noted it. None: it cannot tell.

    A transport's `get_extra_info("socket")` will do, on any event loop.
    """
    credentials = peer_credentials(sock)
    return None if credentials is None else credentials[1]


def peer_credentials(
    sock: socket.socket | TransportSocket,
) -> tuple[int, int] | None:
    """Process id and user id of the other end: who connected, or who listened there.

    The process id is 0 where it is one of a namespace that we do not see into.
    """
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except (AttributeError, OSError):  # not Linux; not a connected unix socket
        return None
    pid, uid, _ = _UCRED.unpack(raw)
    return None if uid == _NOBODY else (pid, uid)


def may_connect(uid: int | None, allow_uids: Collection[int]) -> bool:
    """Whether to serve that user: the one we run as, or one of `allow_uids`. Not even root else."""
    return uid is not None and (uid == os.geteuid() or uid in allow_uids)

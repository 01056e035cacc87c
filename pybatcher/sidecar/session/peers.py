"""The process and user at the other end of a unix socket, and whether the user may connect."""

from __future__ import annotations

import os
import socket
import struct
import sys
from asyncio.trsock import TransportSocket
from collections.abc import Collection

__all__ = ["may_connect", "peer_credentials", "peer_uid"]

_UCRED = struct.Struct("iII")  # pid, uid, gid: struct ucred of Linux's unix(7)
_NO_UID = 2**32 - 1  # the uid of a socket that is not connected

# Constants of macOS that the socket module lacks: <sys/un.h>, and struct xucred of <sys/ucred.h>.
_SOL_LOCAL, _LOCAL_PEERCRED, _LOCAL_PEERPID = 0, 1, 2
_XUCRED = struct.Struct("IIhxx16I")  # version, uid, number of groups, groups
_XUCRED_VERSION = 0


def peer_uid(sock: socket.socket | TransportSocket) -> int | None:
    """Return the user id of the process that connected, as the kernel recorded it, or None.

    sock: a socket, or the result of a transport's `get_extra_info("socket")`, on any event loop.
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
        if sys.platform == "darwin":
            version, uid, *_ = _XUCRED.unpack(
                sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size)
            )
            if version != _XUCRED_VERSION:
                return None
            return sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID), uid
        pid, uid, _ = _UCRED.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        )
    except (AttributeError, OSError, struct.error):  # another system, or no connected unix socket
        return None
    return None if uid == _NO_UID else (pid, uid)


def may_connect(uid: int | None, allow_uids: Collection[int]) -> bool:
    """Return whether a user is served: that of this process or one of `allow_uids`, not root."""
    return uid is not None and (uid == os.geteuid() or uid in allow_uids)

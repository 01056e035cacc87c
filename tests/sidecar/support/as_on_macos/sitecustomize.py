"""Takes from Python what it lacks on macOS, in each process whose PYTHONPATH has this folder.

What is left is what `pybatcher` may use there; where that system answers unlike Linux, it answers
here as that does. Nothing of this is macOS: its kernel, its linker and its libraries are elsewhere.
The system's name is that of macOS, and 3.11's `os` is meant, which is the poorest.
"""

from __future__ import annotations

import os
import resource
import select
import selectors
import socket
import struct
import sys
import sysconfig
import types
from typing import Any

from kqueue_double import KQUEUE

__all__: list[str] = []

# https://docs.python.org/3.11/library/os.html and select.html, by "Availability".
_LACKING_OF_OS = (
    *(
        "eventfd",
        "fdatasync",
        "getrandom",
        "memfd_create",
        "pidfd_open",
        "pipe2",
        "setns",
        "splice",
    ),
    *("posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "unshare"),
    *("waitid", "O_DIRECT", "O_LARGEFILE", "O_NOATIME", "O_PATH", "O_TMPFILE"),
)
_LACKING_OF_SOCKET = ("SO_DOMAIN", "SO_PASSCRED", "SO_PEERCRED", "SO_PROTOCOL", "SOCK_CLOEXEC")
_SO_PEERCRED = 17  # Linux
_MOST_FILES = 10_240  # OPEN_MAX
_LONGEST_PATH = 103

_getsockopt = socket.socket.getsockopt
_bind = socket.socket.bind
_fchmod = os.fchmod
_setrlimit = resource.setrlimit


def _answer(sock: socket.socket, level: int, option: int, *size: int) -> Any:
    if (level, option) == (socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return option * _getsockopt(sock, level, option)  # the bit itself, and not 1
    if level != 0 or sock.family != socket.AF_UNIX:
        return _getsockopt(sock, level, option, *size)
    # SOL_LOCAL: LOCAL_PEERCRED, a struct xucred, and LOCAL_PEERPID.
    pid, uid, gid = struct.unpack("iII", _getsockopt(sock, socket.SOL_SOCKET, _SO_PEERCRED, 12))
    if uid == 2**32 - 1:
        raise OSError(57, "Socket is not connected")
    return pid if option == 2 else struct.pack("IIhxxI60x", 0, uid, 1, gid)


def _short_bind(sock: socket.socket, address: Any) -> None:
    if sock.family == socket.AF_UNIX and len(os.fsencode(address)) > _LONGEST_PATH:
        raise OSError("AF_UNIX path too long")
    _bind(sock, address)


def _fchmod_of_files(descriptor: int, mode: int) -> None:
    if os.readlink(f"/dev/fd/{descriptor}").startswith("socket:"):
        raise OSError(22, "Invalid argument")
    _fchmod(descriptor, mode)


def _stricter_setrlimit(which: int, limits: tuple[int, int]) -> None:
    soft, _ = limits
    if which == resource.RLIMIT_AS or (which == resource.RLIMIT_NOFILE and soft > _MOST_FILES):
        raise ValueError("current limit exceeds maximum limit")
    _setrlimit(which, limits)


for _module, _names in ((os, _LACKING_OF_OS), (socket, _LACKING_OF_SOCKET), (select, ("epoll",))):
    for _name in _names:
        vars(_module).pop(_name, None)
vars(os)["fchmod"] = _fchmod_of_files
vars(resource)["setrlimit"] = _stricter_setrlimit
type.__setattr__(socket.socket, "getsockopt", _answer)
type.__setattr__(socket.socket, "bind", _short_bind)
vars(select).update(KQUEUE)
vars(selectors)["DefaultSelector"] = selectors.PollSelector
_proxies = types.ModuleType("_scproxy")  # of macOS, for urllib
vars(_proxies).update(_get_proxy_settings=dict, _get_proxies=dict)
sys.modules["_scproxy"] = _proxies
sysconfig.get_config_vars()  # keeps them; they lie in a file of Linux
vars(sys)["platform"] = "darwin"

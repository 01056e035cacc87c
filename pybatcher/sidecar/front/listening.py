"""The unix socket that a server listens on: its directory, its replacement, and its removal.

The directory guards the socket: a user who can write there could put another socket in its place.
    Two servers that start at once take turns by a lock on that directory, so that neither takes the
    other's new socket for a stale one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ...errors import ConfigError
from ..session.peers import peer_credentials

__all__ = ["ListeningSocket", "inherited_socket", "open_socket"]

# Bytes; sun_path has one more, and the last one is 0.
_LONGEST_PATH = 103 if sys.platform == "darwin" else 107
_FIRST_INHERITED = 3  # SD_LISTEN_FDS_START
_LOCK_TIMEOUT = 5.0  # seconds; a start holds the lock for a moment
_LOCK_PAUSE = 0.01  # seconds


class ListeningSocket:
    """A listening socket, and its file if this process has made it.

    sock: listens, non-blocking.
    path: path of the file that `close` removes; None for a socket that was inherited.
    """

    def __init__(self, sock: socket.socket, path: Path | None = None) -> None:
        self.sock = sock
        self.path = path
        self._made = None if path is None else os.lstat(path)
        # Keeps the file's inode in use, whose number could otherwise be reused for a successor's
        # file once the socket is closed: then `close` would remove that file. APFS reuses no
        # numbers.
        self._inode: int | None = None
        if path is not None and sys.platform == "linux":
            self._inode = os.open(path, os.O_PATH | os.O_NOFOLLOW)

    def admit(self, allow_uids: Collection[int]) -> None:
        """Let every user connect, or only this one, as `open_socket` does with these uids."""
        if self.path is not None:
            # the file is gone, so no client can connect
            with contextlib.suppress(FileNotFoundError):
                os.chmod(self.path, _mode(allow_uids))

    def close(self) -> None:
        """Remove the file if it is still the one that was made, and close the socket.

        Call it after the event loop's server is closed, which closes the socket as well. A server
        of asyncio must be made with `cleanup_socket=False` where that exists: otherwise it removes
        the file of any socket at the path.
        """
        if self._made is not None and self.path is not None:
            # Without the lock the file stays; the next server replaces a stale file.
            with contextlib.suppress(ConfigError, OSError), _locked(self.path.parent):
                if os.path.samestat(self._made, os.lstat(self.path)):
                    self.path.unlink()
            self._made = None
        if self._inode is not None:
            os.close(self._inode)
            self._inode = None
        self.sock.close()


def open_socket(
    path: str | os.PathLike[str], *, backlog: int, allow_uids: Collection[int] = ()
) -> ListeningSocket:
    """Make a unix socket at `path` and listen. A stale socket is replaced, no other file is.

    backlog: connections that wait to be accepted.
    allow_uids: if not empty, every user can connect, and the caller must check each with
        `may_connect`. Otherwise only this user can.
    Raises ConfigError if the directory is not safe or the path is in use.
    """
    file = Path(os.path.abspath(path))
    if len(os.fsencode(file)) > _LONGEST_PATH:
        raise ConfigError(
            f"socket is '{file}', a path of {len(os.fsencode(file))} bytes; that of a unix "
            f"socket has {_LONGEST_PATH} at most: choose a shorter one"
        )
    _check_directory(file.parent)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        with _locked(file.parent):
            _clear(file)
            # fchmod() of macOS accepts no sockets; the socket does not listen yet
            if sys.platform != "darwin":
                # The mode that bind() gives the file, without the umask's bits: no other user opens
                # it first.
                os.fchmod(sock.fileno(), 0o600)
            sock.bind(os.fspath(file))
            os.chmod(file, _mode(allow_uids))
            sock.listen(backlog)
            return ListeningSocket(sock, file)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot make the socket '{file}': {error.strerror}") from error
    except BaseException:
        sock.close()
        raise


def _mode(allow_uids: Collection[int]) -> int:
    return 0o666 if allow_uids else 0o600


def inherited_socket(environ: Mapping[str, str], pid: int) -> socket.socket | None:
    """Return the listening socket that an init system hands to this process, of id `pid`.

    None if there is none (LISTEN_PID, LISTEN_FDS: sd_listen_fds(3)). Its file belongs to the init
    system: give it to `ListeningSocket` without a path. Raises ConfigError for several sockets,
    or for one that is no listening unix stream socket.
    """
    if environ.get("LISTEN_PID") != str(pid) or environ.get("LISTEN_FDS", "0") == "0":
        return None
    if environ["LISTEN_FDS"] != "1":
        raise ConfigError(
            f"LISTEN_FDS is {environ['LISTEN_FDS']!r}; one socket can be served: "
            "name one in the socket unit"
        )
    try:
        os.set_inheritable(_FIRST_INHERITED, False)
        sock = socket.socket(fileno=_FIRST_INHERITED)
    except OSError as error:
        raise ConfigError(
            f"LISTEN_FDS is 1, but descriptor {_FIRST_INHERITED} is no socket: {error.strerror}"
        ) from error
    is_listening = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    if (sock.family, sock.type, is_listening) != (socket.AF_UNIX, socket.SOCK_STREAM, True):
        sock.detach()
        raise ConfigError(
            "the socket that LISTEN_FDS hands over is no listening unix stream socket: "
            "use ListenStream= with a path in the socket unit"
        )
    sock.setblocking(False)
    return sock


def _check_directory(directory: Path) -> None:
    try:
        status = os.stat(directory)
    except OSError as error:
        raise ConfigError(
            f"the directory of the socket, '{directory}', cannot be used: {error.strerror}; "
            f"make it with: mkdir -m 700 '{directory}'"
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"'{directory}' is no directory; a socket cannot lie in it")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"the directory of the socket, '{directory}', belongs to user {status.st_uid}, who "
            "could replace the socket; choose one that is yours"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"others can write into the directory of the socket, '{directory}', and could "
            f"replace it; choose another, or: chmod go-w '{directory}'"
        )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory. Raises ConfigError if another process keeps it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Any process that can read the directory can hold its lock, so this does not wait
                # forever.
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"the directory of the socket, '{directory}', has been locked by another "
                        f"process for {_LOCK_TIMEOUT:g} s; end it, or choose another directory"
                    ) from None
            time.sleep(_LOCK_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _clear(file: Path) -> None:
    """Remove a socket that no process listens on. Raises ConfigError for any other file."""
    try:
        mode = os.lstat(file).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"socket is '{file}', which is there and no socket; choose another path")
    user = _user_of(file)
    if user is not None:
        raise ConfigError(f"the socket '{file}' is in use by {user}; end it, or choose another")
    with contextlib.suppress(FileNotFoundError):
        file.unlink()


def _user_of(file: Path) -> str | None:
    """Return the process that listens on the socket, in words; None if none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog would block
        if probe.connect_ex(os.fspath(file)) in (errno.ECONNREFUSED, errno.ENOENT):
            return None
        # With any other error a process listens, perhaps on a socket of another kind.
        pid, _ = peer_credentials(probe) or (0, 0)
    return f"process {pid}" if pid else "another process"

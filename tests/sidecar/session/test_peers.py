"""Who connects over a unix socket: told by the kernel, decided by a pure rule."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pybatcher.sidecar.front.listening import open_socket
from pybatcher.sidecar.session.peers import may_connect, peer_credentials, peer_uid

PATIENCE = 60.0
SOMEBODY = 65534
LOOPS = ["asyncio", *(["uvloop"] * bool(importlib.util.find_spec("uvloop")))]
AS_SOMEBODY = f"""
import os, socket, sys
os.setgid({SOMEBODY})
os.setuid({SOMEBODY})
try:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(sys.argv[1])
        sys.exit(7 if sock.recv(1) == b"" else 8)
except PermissionError:
    sys.exit(9)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Others can reach what lies in it, unlike what lies in pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_the_rule() -> None:
    own = os.geteuid()
    assert may_connect(own, ())
    assert may_connect(own, (own + 1,))
    assert may_connect(own + 1, (5, own + 1))
    assert not may_connect(own + 1, ())
    assert not may_connect(own + 1, (own + 2,))
    assert not may_connect(None, (0, own))


def test_root_is_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not may_connect(0, ())
    assert may_connect(0, (0,))


def test_a_peer_of_our_own() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_uid(one) == os.getuid()


def test_what_has_no_peer_is_nobody() -> None:
    with socket.socket(socket.AF_UNIX) as alone, socket.socket(socket.AF_INET) as other:
        assert peer_uid(alone) is None
        assert not may_connect(peer_uid(alone), ())
        assert not may_connect(peer_uid(other), ())


class MacSocket:
    """One of macOS that is asked who its peer is."""

    def __init__(self, credentials: bytes) -> None:
        self._credentials = credentials

    def getsockopt(self, level: int, option: int, n_bytes: int = 0) -> bytes | int:
        assert level == 0  # SOL_LOCAL
        if n_bytes == 0:
            assert option == 2  # LOCAL_PEERPID
            return 4321
        assert option == 1  # LOCAL_PEERCRED
        return self._credentials[:n_bytes]


@pytest.mark.parametrize(
    ("version", "n_bytes", "told"), [(0, 76, (4321, 501)), (1, 76, None), (0, 0, None)]
)
def test_a_peer_on_macos(
    monkeypatch: pytest.MonkeyPatch, version: int, n_bytes: int, told: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    credentials = struct.pack("IIhxx16I", version, 501, 2, 20, 12, *([0] * 14))
    sock: Any = MacSocket(credentials[:n_bytes])
    assert peer_credentials(sock) == told


@pytest.mark.parametrize("kind", LOOPS)
def test_it_is_told_of_a_transport_of_either_loop(kind: str, tmp_path: Path) -> None:
    async def connect() -> int | None:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[int | None] = loop.create_future()

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                told.set_result(peer_uid(transport.get_extra_info("socket")))
                transport.close()

        listening = open_socket(tmp_path / "s", backlog=5)
        server = await loop.create_unix_server(Server, sock=listening.sock)
        transport, _ = await loop.create_unix_connection(asyncio.Protocol, str(tmp_path / "s"))
        try:
            return await asyncio.wait_for(told, PATIENCE)
        finally:
            transport.close()
            server.close()
            await server.wait_closed()
            listening.close()

    factory = None
    if kind == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(connect()) == os.getuid()


def meet_somebody(path: Path, allow_uids: tuple[int, ...]) -> tuple[int, int | None]:
    """Somebody else's exit status, and their uid where they could connect."""
    listening = open_socket(path, backlog=5, allow_uids=allow_uids)
    listening.sock.settimeout(0.0 if not allow_uids else PATIENCE)
    command = [sys.executable, "-c", AS_SOMEBODY, str(path)]
    try:
        with subprocess.Popen(command) as process:
            uid = None
            if allow_uids:
                connection, _ = listening.sock.accept()
                with connection:
                    uid = peer_uid(connection)
            return process.wait(PATIENCE), uid
    finally:
        listening.close()


def test_another_user_is_kept_out_or_told_by_their_uid(open_folder: Path) -> None:
    if os.geteuid() != 0:  # then there is no second user to be had: the rule is all there is
        assert not may_connect(SOMEBODY, ())
        return
    assert meet_somebody(open_folder / "closed", ()) == (9, None)
    assert meet_somebody(open_folder / "open", (1000,)) == (7, SOMEBODY)
    assert not may_connect(SOMEBODY, (1000,))
    assert may_connect(SOMEBODY, (SOMEBODY,))

"""Who may connect to `pybatcher serve`: which users, and how many clients."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from batcher_helpers import until
from serving_doubles import PATIENCE, serving

from pybatcher import Client, ConnectionLostError, Health
from pybatcher.sidecar.front.front import Front
from pybatcher.sidecar.front.http_listener import HttpListener
from pybatcher.sidecar.front.serve_config import ServeConfig
from pybatcher.sidecar.front.socket_listener import SocketListener

pytestmark = pytest.mark.slow


class FrontDouble:
    """Serves health, and nothing else."""

    model_name = "its name"

    async def ask(self, question: object) -> Health:
        return Health("ready", "requests are served")

    def attach(self, handler: object) -> None:
        """Report nothing to it."""


async def test_who_may_come_in_no_more_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chmod(tmp_path, 0o700)
    own, paths = os.geteuid(), [tmp_path / "p.sock", tmp_path / "http.sock"]
    config = ServeConfig(socket=str(paths[0]), uds=str(paths[1]), allow_uids=[own])
    listeners = [SocketListener(config, ""), HttpListener(config)]
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)  # the server is somebody else from now on
    try:
        for listener in listeners:
            await listener.start({"": cast(Front, FrontDouble())})
        ends = [await asyncio.open_unix_connection(path) for path in paths]
        await until(lambda: all(listener.n_connections == 1 for listener in listeners))
        for listener in listeners:
            listener.use(config)
        ends[1][1].write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b" 200 " in await ends[1][0].readline()
        for listener in listeners:
            listener.use(replace(config, allow_uids=()))
        for reader, writer in ends:
            with suppress(ConnectionError):
                assert b"\r\n200" not in await asyncio.wait_for(reader.read(), PATIENCE)
            writer.close()
        for path in paths:
            assert path.stat().st_mode & 0o777 == 0o600
        reader, writer = await asyncio.open_unix_connection(paths[0])
        assert b"this user may not connect" in await reader.read()
        writer.close()
    finally:
        for listener in listeners:
            listener.close_soon()
            await listener.gone()
            listener.close()


async def test_there_are_so_many_connections_and_no_more(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-connections", "2") as running:
        async with Client(running.socket) as first, Client(running.socket) as second:
            with pytest.raises(ConnectionLostError, match="max_connections"):
                await Client(running.socket, connect_timeout=2.0).start()
            assert (await first.generate("Once", max_tokens=2)).token_ids
            assert (await second.health()).ok
        async with Client(running.socket) as third:
            assert (await third.health()).ok


def connect_as(uid: int, path: Path) -> str:
    """What somebody of that user id reads from the socket, or why it cannot connect."""
    program = (
        "import os, socket, sys; os.setgid(65534); os.setuid(int(sys.argv[1]));"
        "s = socket.socket(socket.AF_UNIX); s.settimeout(30)\n"
        "try: s.connect(sys.argv[2]); print(s.recv(1000))\n"
        "except OSError as error: print(type(error).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(uid), str(path)], capture_output=True, text=True
    )
    return done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a while")
def test_another_user_is_refused_by_the_file_and_by_the_server() -> None:
    # Not below pytest's own folder: other runs of it take others' rights to that away.
    with tempfile.TemporaryDirectory() as folder:
        _another_user_is_refused(Path(folder))


def _another_user_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        tmp_path.chmod(0o755)
        assert "PermissionError" in connect_as(65534, running.socket)
        running.socket.chmod(0o666)
        assert "refused" in connect_as(65534, running.socket)
        assert "was turned away" in running.said()
    with serving(tmp_path, "--allow-uids", "65534") as running:
        tmp_path.chmod(0o755)
        assert "TimeoutError" not in connect_as(65533, running.socket)
        assert "refused" in connect_as(65533, running.socket)

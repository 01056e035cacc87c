"""Making the client's connection: what is not there yet, or is no sidecar."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from session_helpers import ServiceOf
from small_sidecar import SmallSidecar, raised_by, sidecar

from pybatcher import (
    Batcher,
    BatcherClosedError,
    Client,
    ConfigError,
    ConnectionLostError,
)
from pybatcher.sidecar.protocol.connection import Limits
from pybatcher.sidecar.session.session import ServerSession

pytestmark = pytest.mark.slow

PROMPT = "Once upon a time"
SHORT = 0.2  # seconds; of waits that are to be in vain
ANSWER = 2.0  # seconds; of waits that are to be in vain, after an answer came


@asynccontextmanager
async def impostor(
    path: Path, answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[None]:
    """Answer one client by `answer`, then hear it out and hang up."""
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer)
        await reader.read()  # to the end
        writer.close()
        await writer.wait_closed()
        gone.set()

    async with await asyncio.start_unix_server(serve, path):
        yield
        await gone.wait()


async def test_without_a_sidecar_it_says_where_and_why_and_the_way_out(path: Path) -> None:
    client = Client(path, connect_timeout=SHORT)
    error = await raised_by(client.start)
    assert isinstance(error, ConnectionLostError)
    for part in (str(path), "No such file", "is `pybatcher serve` running"):
        assert part in str(error)
    with pytest.raises(BatcherClosedError, match="was not started"):
        await client.generate(PROMPT)
    assert (await client.health()).status == "new"
    await client.close()
    assert (await client.health()).status == "closed"
    with pytest.raises(BatcherClosedError, match="make another"):
        await client.start()


@pytest.mark.parametrize("way", ["missing", "nobody listens"])
async def test_by_default_it_does_not_wait_long_for_a_socket_that_is_not_there(
    path: Path, way: str
) -> None:
    if way == "nobody listens":
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    error = await raised_by(Client(path).start)
    assert isinstance(error, ConnectionLostError)
    for part in (str(path), "within 1 s", "is `pybatcher serve` running"):
        assert part in str(error)


async def test_it_waits_for_a_sidecar_that_is_being_started(path: Path, batcher: Batcher) -> None:
    one = SmallSidecar(path, batcher, Limits())
    late = asyncio.create_task(one.listen_later(SHORT))
    async with Client(path) as client:
        assert (await client.health()).ok
    await late
    await one.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": ""}, "1 to 107 bytes"),
        ({"path": "x" * 108}, "1 to 107 bytes"),
        ({"path": "a\0b"}, "1 to 107 bytes"),
        ({"path": 3}, "path is 3"),
        ({"path": "x", "connect_timeout": 0}, "connect_timeout is 0"),
        ({"path": "x", "connect_timeout": float("nan")}, "connect_timeout is nan"),
        ({"path": "x", "connect_timeout": "1"}, "connect_timeout is '1'"),
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Client(**arguments)


async def test_the_path_is_where_serve_puts_the_socket(
    tmp_path: Path, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with sidecar(tmp_path / "pybatcher.sock", batcher), Client() as client:
        assert client.model_name == "fake"


async def test_the_environment_names_the_path(
    path: Path, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYBATCHER_SOCKET", str(path))
    async with sidecar(path, batcher), Client() as client:
        assert client.model_name == "fake"


async def test_what_is_no_sidecar_is_not_taken_for_one(path: Path) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with impostor(path, answer):
        error = await raised_by(Client(path, connect_timeout=ANSWER).start)
    assert isinstance(error, ConnectionLostError)
    assert "broke the protocol" in str(error)


async def test_a_connection_that_is_lost_with_its_first_answer_is_none(path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, msgid, method, _ = msgpack.unpackb(await reader.read(4096))
        assert method == "hello"
        writer.write(msgpack.packb([1, msgid, None, {"model": "x"}]) + b"\xc1")

    async with impostor(path, answer):
        error = await raised_by(Client(path, connect_timeout=ANSWER).start)
    assert isinstance(error, ConnectionLostError)
    assert "broke the protocol" in str(error)


async def test_who_turns_clients_away_says_why(path: Path, batcher: Batcher) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(
        lambda: ServerSession(
            ServiceOf(batcher), on_end=lambda _: None, admit=lambda *_: "there are too many"
        ),
        path,
    )
    error = await raised_by(Client(path, connect_timeout=ANSWER).start)
    assert isinstance(error, ConnectionLostError)
    assert "there are too many" in str(error)
    server.close()


async def test_who_takes_connections_and_does_not_answer_is_named(path: Path) -> None:
    async def say_nothing(*_: object) -> None:
        pass

    async with impostor(path, say_nothing):
        error = await raised_by(Client(path, connect_timeout=SHORT).start)
    assert isinstance(error, ConnectionLostError)
    assert "may be opening its model" in str(error)

"""The server below the application: who is cut, how many are served, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import json

import pytest
from raw_server import GET, Served, served, until_cut

from pybatcher.http.server.http_protocol import HttpProtocol


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nhost: h",
        b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\n1234",
        b"POST / HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n4\r\n1234\r\n",
    ],
    ids=["nothing", "a line", "a head", "a body", "a body in chunks"],
)
async def test_half_a_request_is_cut(data: bytes) -> None:
    async with served(request_timeout=0.05) as running:
        reader = await running.send(data)
        assert b"200" not in await until_cut(reader)
        assert not running.server.n_connections


async def test_half_of_a_second_request_is_cut() -> None:
    async with served(request_timeout=0.05) as running:
        reader = await running.send(GET + b"GET / HTTP")
        assert b"200 OK" in await until_cut(reader)


async def test_an_answer_may_take_any_time() -> None:
    async with served(request_timeout=0.05) as running:
        waiting = await running.send(GET.replace(b" / ", b" /slow "))
        for _ in range(5):  # each of them waits for longer than the limit
            await until_cut(await running.send(b""))
        running.app.go.set()
        assert b"200 OK" in await until_cut(waiting)


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET /", *40 * [b"a" * 2048]],
        [b"GET / HTTP/1.1\r\nhost: here\r\na: ", *40 * [b"a" * 2048]],
        [b"GET / HTTP/1.1\r\nhost: here\r\n", *40 * [b"a: " + b"b" * 2045 + b"\r\n"]],
        [
            b"POST / HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
            *40 * [b"a: " + b"b" * 2045 + b"\r\n"],
        ],
    ],
    ids=["a path", "a header", "many headers", "trailers"],
)
async def test_a_head_without_end_is_refused(parts: list[bytes]) -> None:
    async with served() as running:
        reader = await running.send(parts[0])
        (writer,) = running.writers
        for part in parts[1:]:
            writer.write(part)
            await asyncio.sleep(0.001)  # each is read by itself
        assert b"200" not in await until_cut(reader)


async def test_a_body_may_be_larger_than_a_head() -> None:
    async with served() as running:
        head = (
            b"POST / HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-length: 200000\r\n\r\n"
        )
        assert b"200 OK" in await (await running.send(head + 200_000 * b"a")).read()


async def slow_ones(running: Served, n: int) -> list[asyncio.StreamReader]:
    """Requests that are answered when `go` is set."""
    n_before = running.app.n_begun
    begun = [await running.send(GET.replace(b" / ", b" /slow ")) for _ in range(n)]
    while running.app.n_begun < n_before + n:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return begun


async def test_past_the_limit_requests_are_refused_and_then_connections_cut() -> None:
    async with served(max_connections=2) as running:
        first = await slow_ones(running, 2)
        third = await running.send(GET)
        told = await until_cut(third)  # with its connection
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in told
        assert (
            "max_connections = 2" in json.loads(told.partition(b"\r\n\r\n")[2])["error"]["message"]
        )
        running.app.go.set()
        for reader in first:
            assert b"200 OK" in await reader.readline()


async def test_a_crowd_is_cut_where_requests_keep_their_connections() -> None:
    """As many as are served, and as many that have been refused and do not go."""
    async with served(max_connections=2) as running:
        first = await slow_ones(running, 2)
        limits = running.server._strangers
        held = [await running.send(GET[:-2]) for _ in range(2)]
        while len(limits) < 1 or running.server.n_connections < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert await until_cut(held[0]) == b""  # the second one has its place
        assert running.server.n_connections == 3
        running.app.go.set()
        for reader in first:
            assert b"200 OK" in await reader.readline()


async def test_a_crowd_of_strangers_turns_nobody_away() -> None:
    async with served(max_connections=2) as running:
        known = await running.send(GET)
        assert b"200 OK" in await known.readuntil(b"\r\n\r\n")
        crowd = [await running.send(begun) for begun in (b"", b"GET /", GET[:-2], b"", GET[:-2])]
        assert b"200 OK" in await (await running.send(GET)).readline()  # the newest of all
        for reader in crowd[:4]:
            assert await until_cut(reader) == b""
        assert running.server.n_connections == 2
        running.writers[0].write(GET)  # who was there before is, still
        while b"HTTP/1.1" not in (line := await known.readline()):
            pass
        assert b"200 OK" in line


async def test_it_ends_with_the_last_answer() -> None:
    async with served() as running:
        idle = await running.send(b"")
        reader = await running.send(GET.replace(b" / ", b" /slow "))
        while not running.app.n_begun:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        running.server.close_soon()
        with pytest.raises(ConnectionRefusedError):
            await running.send(b"")
        assert await until_cut(idle) == b""
        gone = asyncio.ensure_future(running.server.gone())
        assert not gone.done()
        running.app.go.set()
        answer = await reader.read()
        assert b"200 OK" in answer
        assert b"connection: close" in answer
        await gone


async def test_who_is_not_admitted_is_cut() -> None:
    async with served(admit=lambda _: False) as running:
        assert await until_cut(await running.send(GET)) == b""
        assert not running.app.n_begun


@pytest.mark.parametrize(
    "data",
    [b"", GET[:-4], GET, GET + GET[:-4], GET.replace(b"/", b"/slow", 1) * 3],
    ids=["nothing", "a head", "a request", "half of a second", "three at once"],
)
async def test_a_connection_that_was_cut_leaves_nothing_for_the_garbage_collector(
    data: bytes,
) -> None:
    def left() -> int:
        return sum(isinstance(one, HttpProtocol) for one in gc.get_objects())

    gc.collect()
    before = left()
    gc.disable()
    try:
        async with served() as running:
            reader = await running.send(data)
            if data.startswith(GET):
                assert await reader.readline()
            assert left() == before + 1
            running.writers[0].transport.abort()
            while running.server.n_connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
            running.app.go.set()
            async with asyncio.timeout(30):
                while left() > before:  # noqa: ASYNC110 - the tasks of its requests end
                    await asyncio.sleep(0.01)
    finally:
        gc.enable()

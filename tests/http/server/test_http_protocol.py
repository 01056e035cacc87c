"""Requests that are none, as clients send them who want a proxy to see others than the server."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from raw_server import GET, Served, served, until_cut

ROOT = Path(__file__).resolve().parents[3]
BODY = b"hello"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: here\r\n\r\n"


def post(*headers: bytes, body: bytes = BODY, sized: bool = False) -> bytes:
    lines = [b"POST / HTTP/1.1", b"host: here", *headers]
    lines += [b"content-length: %d" % len(body)] if sized else []
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


CHUNKED = b"transfer-encoding: chunked"
NONE = {
    "both lengths": post(CHUNKED, b"content-length: 5", body=b"0\r\n\r\n" + SMUGGLED),
    "two lengths": post(b"content-length: 5", b"content-length: 4"),
    "a list of lengths": post(b"content-length: 5, 5"),
    "a sign": post(b"content-length: +5"),
    "below zero": post(b"content-length: -5"),
    "hexadecimal": post(b"content-length: 0x5"),
    "too large for 64 bits": post(b"content-length: 99999999999999999999"),
    "a space before the colon": post(b"content-length : 5"),
    "another coding": post(b"transfer-encoding: xchunked", body=b"0\r\n\r\n"),
    "chunked is not last": post(b"transfer-encoding: chunked, identity", body=b"0\r\n\r\n"),
    "chunked twice": post(CHUNKED, CHUNKED, body=b"0\r\n\r\n"),
    "a vertical tab": post(b"transfer-encoding: \x0bchunked", body=b"0\r\n\r\n"),
    "a chunk below zero": post(CHUNKED, body=b"-1\r\n\r\n"),
    "a chunk with 0x": post(CHUNKED, body=b"0x5\r\nhello\r\n0\r\n\r\n"),
    "a chunk of 2**72": post(CHUNKED, body=b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
    "chunks by line feeds": post(CHUNKED, body=b"5\nhello\n0\n\n"),
    "a chunk that goes on": post(CHUNKED, body=b"5\r\nhelloXX0\r\n\r\n"),
    "a folded header": post(b"a: b\r\n c", sized=True),
    "a folded length": post(b"transfer-encoding:\r\n chunked", body=b"0\r\n\r\n"),
    "a carriage return": post(b"a: b\rc: d", sized=True),
    "line feeds": post(sized=True).replace(b"\r\n", b"\n"),
    "a null": post(b"a: b\0c", sized=True),
    "no colon": post(b"abc", sized=True),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a method that is none": GET.replace(b"GET", b"FROB"),
    "a tunnel": b"CONNECT here:80 HTTP/1.1\r\nhost: here\r\n\r\n" + SMUGGLED,
    "a null in the path": GET.replace(b" / ", b" /a\0b "),
    "a space in the path": GET.replace(b" / ", b" /a b "),
    "a line feed behind a chunk's size": post(CHUNKED, body=b"5;a\nb\r\nhello\r\n0\r\n\r\n"),
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nhost: here\r\nhost: there\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.2": GET.replace(b"HTTP/1.1", b"HTTP/1.2"),
    "chunks in HTTP/1.0": post(CHUNKED, body=b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "10,000 headers": post(*[b"a%d: b" % i for i in range(10_000)], sized=True),
}


async def test_what_is_no_request_is_refused_as_json_and_ends_its_connection() -> None:
    async with served(max_connections=100) as running:
        honest = await running.send(GET.replace(b" / ", b" /slow "))
        for about, data in NONE.items():
            answer = await until_cut(await running.send(data))
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 "), about
            error = json.loads(body)["error"]
            assert error["code"] == "invalid_http", about
            assert head.count(b"HTTP/1.1") == 1, about
        assert "/smuggled" not in running.app.paths
        running.app.go.set()
        assert b"200 OK" in await honest.readline()


UPGRADE = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABk")


@pytest.mark.parametrize("chunked", [False, True])
async def test_who_asks_for_another_protocol_has_this_one(chunked: bool) -> None:
    """Java's HttpClient does, with bodies; and a body is never the next request."""
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED) if chunked else SMUGGLED
    framing = CHUNKED if chunked else b"content-length: %d" % len(body)
    request = post(*UPGRADE, framing, body=b"")
    async with served() as running:
        whole = await running.send(request + body + GET)
        await answered(whole, 2)
        await in_parts(running, request, body, GET)
        await in_parts(running, request, body[:9], body[9:] + GET)
        await in_parts(running, request[:-2], request[-2:] + body, GET)
        assert running.app.bodies == [SMUGGLED, b""] * 4


async def test_who_waits_for_leave_to_send_a_body_gets_it() -> None:
    async with served() as running:
        reader = await running.send(post(b"expect: 100-continue", b"content-length: 5", body=b""))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        running.writers[-1].write(BODY + GET)
        await answered(reader, 2)
        assert running.app.bodies == [BODY, b""]


@pytest.mark.parametrize("path", [b"/", b"/large"])
async def test_an_answer_to_an_old_version_ends_with_its_connection(path: bytes) -> None:
    """Proxies speak HTTP/1.0 by default, which knows no chunks."""
    async with served() as running:
        asked = b"GET %b HTTP/1.0\r\nconnection: keep-alive\r\n\r\n" % path
        head, _, body = (await until_cut(await running.send(asked))).partition(b"\r\n\r\n")
        assert b"200 OK" in head
        assert b"connection: close" in head
        assert b"transfer-encoding" not in head
        assert body == (b"x" * 64 * 2**16 if path == b"/large" else b"") + b"done"


def test_uvicorn_is_of_a_version_that_was_tested() -> None:
    """HttpProtocol overrides private parts of uvicorn, so the requirement has an upper bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (wanted,) = {one for extra in extras.values() for one in extra if re.match(r"uvicorn\b", one)}
    low, high = re.fullmatch(r"uvicorn>=0\.(\d+),<0\.(\d+)", wanted).groups()  # type: ignore[union-attr]
    assert int(low) <= int(version("uvicorn").split(".")[1]) < int(high)


async def test_a_target_may_be_absolute_and_chunks_extended() -> None:
    async with served() as running:
        absolute = GET.replace(b" / ", b" http://other.example/where ")
        extended = post(CHUNKED, body=b'5;a="b;c"\r\nhello\r\n0\r\n\r\n')
        await answered(await running.send(absolute + extended), 2)
        assert running.app.paths == ["/where", "/"]
        assert running.app.bodies == [b"", BODY]


async def in_parts(running: Served, *parts: bytes) -> None:
    reader = await running.send(parts[0])
    for part in parts[1:]:
        await asyncio.sleep(0.02)  # each is read by itself
        running.writers[-1].write(part)
    await answered(reader, 2)


async def answered(reader: asyncio.StreamReader, n: int) -> None:
    for _ in range(n):
        assert b"200 OK" in await reader.readuntil(b"\r\n")
        await reader.readuntil(b"done\r\n0\r\n\r\n")


async def test_a_few_requests_may_come_at_once() -> None:
    async with served() as running:
        wish = b"\r\n".join([b"GET / HTTP/1.1", b"host: here", *UPGRADE, b"\r\n"])
        await answered(await running.send(wish + GET + wish + 30 * GET), 33)
        assert running.app.n_begun == 33
        told = await until_cut(await running.send(GET * 2000))
        assert b"HTTP/1.1 400 " in told
        assert running.app.n_begun <= 33 + 33


async def test_who_reads_nothing_is_cut() -> None:
    async with served(request_timeout=0.1) as running:
        reader = await running.send(GET.replace(b" / ", b" /large "))
        running.writers[-1].transport.pause_reading()
        while running.server.n_connections:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert running.app.n_begun == 1
        assert not reader.at_eof()


async def test_who_reads_slowly_is_not() -> None:
    async with served(request_timeout=0.2) as running:
        reader = await running.send(GET.replace(b" / ", b" /large "))
        size = 0
        while not (data := await reader.read(2**18)).endswith(b"done\r\n0\r\n\r\n"):
            size += len(data)
            await asyncio.sleep(0.05)
        assert size + len(data) > 64 * 2**16


async def answers(running: Served, asked: bytes, step: int = 10**6) -> bytes:
    """Return all that comes back for bytes that are sent in pieces of `step`."""
    reader = await running.send(asked[:step])
    with suppress(ConnectionError):
        for at in range(step, len(asked), step):
            if reader.at_eof() or reader.exception() is not None:
                break
            running.writers[-1].write(asked[at : at + step])
            await asyncio.sleep(0)
    return await until_cut(reader)


async def test_an_expectation_that_is_not_known_is_417() -> None:
    async with served() as running:
        for value in (b"200-ok", b"100-continue, money", b"x" * 5000, b"\xff"):
            told = await answers(running, post(b"expect: " + value, sized=True))
            assert told.startswith(b"HTTP/1.1 417 "), value
            assert b"connection: close" in told
            assert json.loads(told.split(b"\r\n\r\n")[1])["error"]["param"] == "expect"
        assert running.app.n_begun == 0
        for value in (b"100-Continue", b"", b" , 100-continue"):
            told = await answers(
                running, post(b"expect: " + value, b"connection: close", sized=True)
            )
            assert b"HTTP/1.1 200 " in told, value
        old = post(b"expect: money", sized=True).replace(b"HTTP/1.1", b"HTTP/1.0")
        assert b" 200 " in await answers(running, old)


@pytest.mark.parametrize("n_bytes", [0, 1000, 4000])
@pytest.mark.parametrize("n_chunks", [1, 5000])
async def test_chunks_may_have_small_extensions(n_bytes: int, n_chunks: int) -> None:
    extension = b";a=" + b"b" * n_bytes if n_bytes else b""
    chunks = [b"1%b\r\nx\r\n" % (b"" if i else extension) for i in range(n_chunks)]
    body = b"".join([*chunks, b"0\r\na: " + b"b" * 1000 + b"\r\n\r\n"])
    asked = post(CHUNKED, b"a: " + b"b" * 60_000, b"connection: close", body=body)
    async with served() as running:
        assert b"HTTP/1.1 200 " in await answers(running, asked)
        assert running.app.n_begun == 1


@pytest.mark.parametrize("step", [61, 977, 10**6])
async def test_chunks_may_not_have_large_ones(step: int) -> None:
    one = post(CHUNKED, body=b"5;a=" + b"b" * 5000 + b"\r\nhello\r\n0\r\n\r\n")
    many = post(CHUNKED, body=b"1;abcdefghijkl\r\nx\r\n" * 5000 + b"0\r\n\r\n")
    zeros = post(CHUNKED, body=b"0" * 5000 + b"5\r\nhello\r\n0\r\n\r\n")
    async with served() as running:
        for asked in (one, many, zeros):
            told = await answers(running, asked, step=step)
            assert b"HTTP/1.1 400 " in told or (step < 10**6 and not told)  # reset before it came
            assert b"HTTP/1.1 200 " not in told


SLOW = GET.replace(b" / ", b" /slow ")


@pytest.mark.parametrize("about", ["HTTP/2", "two hosts", "a chunk below zero", "10,000 headers"])
@pytest.mark.parametrize("step", [101, 10**6])
async def test_a_bad_request_is_refused_behind_the_answers_before_it(about: str, step: int) -> None:
    async with served() as running:
        for n_good in (1, 3):
            asked = n_good * GET + NONE[about]
            told = await answers(running, asked, step if len(asked) < 2000 else 10**6)
            *good, refused = told.split(b"HTTP/1.1 ")[1:]
            assert len(good) == n_good
            for one in good:
                assert one.startswith(b"200 ")
                assert one.endswith(b"done\r\n0\r\n\r\n")
            head, _, body = refused.partition(b"\r\n\r\n")
            assert head.startswith(b"400 ")
            assert json.loads(body)["error"]["code"] == "invalid_http"


@pytest.mark.parametrize("about", ["TLS", "no host", "a chunk with 0x"])
async def test_a_bad_request_leaves_the_stream_under_way_whole(about: str) -> None:
    async with served() as running:
        reader = await running.send(SLOW + GET)
        while not running.app.n_begun:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        running.writers[-1].write(NONE[about])
        await asyncio.sleep(0.05)
        for _ in range(20):  # more of the kind, which nobody reads
            running.writers[-1].write(NONE[about] + GET)
            await asyncio.sleep(0)
        running.app.go.set()
        await answered(reader, 2)
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        assert b"HTTP/1.1 " not in await until_cut(reader)
        assert running.app.paths == ["/slow", "/"]


async def test_a_body_that_turns_bad_ends_its_own_answer_only() -> None:
    """Also one that has begun, into which no second answer is written."""
    told: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        begins = scope["path"] == "/begins"
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (message := await receive())["type"] == "http.request":
            if not message["more_body"]:
                break
        told.append(message["type"])
        if not begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    bad = b"3\r\nabc\r\nxyz\r\n"
    async with served(application) as running:
        head = post(CHUNKED, body=b"")
        reader = await running.send(GET + head.replace(b" / ", b" /begins "))
        await answered(reader, 1)
        await reader.readuntil(b"begun\r\n")
        running.writers[-1].write(bad)
        assert await until_cut(reader) == b""
        reader = await running.send(GET + head + bad)
        await answered(reader, 1)
        assert (await until_cut(reader)).startswith(b"HTTP/1.1 400 ")
    # The last one waited for its turn, and never began.
    assert told == ["http.request", "http.disconnect", "http.request"]


async def test_a_client_that_leaves_is_noticed_by_all_its_requests() -> None:
    left = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async with served(application) as running:
        await running.send(GET + GET)
        await asyncio.sleep(0.02)
        running.writers[-1].close()
        async with asyncio.timeout(30.0):
            await left.wait()

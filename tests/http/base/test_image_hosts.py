"""Fetching of images: from allowed hosts, over TLS, at the address that was checked, or not."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pybatcher.errors import ConfigError
from pybatcher.http.base import image_hosts
from pybatcher.http.base.body_room import BodyRoom
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.base.image_hosts import ImageHosts

WHERE = "messages[0].content[0].image_url.url"
URL = "https://images.example.org/a/b.png?c=d"
PUBLIC = "93.184.216.34"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\n"


@asynccontextmanager
async def serving(
    answer: bytes, *, is_open: bool = False
) -> AsyncIterator[tuple[Any, list[bytes]]]:
    """Serve an answer to every request. Gives a `connect`, and the requests."""
    requests: list[bytes] = []
    ends = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        try:
            for i in range(0, len(answer), 1000):  # the parser gets it in parts
                writer.write(answer[i : i + 1000])
                await writer.drain()
            if is_open:
                await ends.wait()
        except OSError:
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def connect(address: str, host: str) -> Any:
        requests.append(f"{address} {host}".encode())
        return await asyncio.open_connection("127.0.0.1", port)

    try:
        yield connect, requests
    finally:
        ends.set()
        server.close()


def resolving(*addresses: str) -> Callable[[str], Any]:
    async def resolve(host: str) -> list[str]:
        return list(addresses)

    return resolve


async def fetched(answer: bytes, *, most: int = 2**20, is_open: bool = False) -> bytes:
    async with serving(answer, is_open=is_open) as (connect, _):
        hosts = ImageHosts(
            ["images.example.org"], most=most, resolve=resolving(PUBLIC), connect=connect
        )
        return await hosts.fetch(URL, WHERE, BodyRoom(2**24))


async def test_an_image_comes_from_the_checked_address() -> None:
    image = bytes(range(256)) * 500
    answer = HEAD + b"content-length: %d\r\n\r\n" % len(image) + image
    async with serving(answer, is_open=True) as (connect, requests):
        hosts = ImageHosts(
            ["Images.example.org"], resolve=resolving(PUBLIC, "1.1.1.1"), connect=connect
        )
        room = BodyRoom(2**24)
        assert await hosts.fetch(URL, WHERE, room) == image
        assert room.n_taken == 0
    assert requests[0] == f"{PUBLIC} images.example.org".encode()
    head = requests[1].split(b"\r\n")
    assert head[0] == b"GET /a/b.png?c=d HTTP/1.1"
    assert b"host: images.example.org" in head


async def test_bodies_end_by_chunks_or_with_the_connection() -> None:
    chunks = b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert await fetched(HEAD + chunks, is_open=True) == b"abcde"
    assert await fetched(HEAD + b"\r\nabcde") == b"abcde"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "connection ended"),
        (b"HTTP/1.1 200", "connection ended"),
        (b"\x16\x03\x01 no HTTP", "no HTTP"),
        (HEAD + b"content-length: 9\r\n\r\nabc", "connection ended"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", "connection ended"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nxyz\r\n", "no HTTP"),
        (HEAD + b"content-length: 2000\r\n\r\n" + bytes(2000), "more than 1000 bytes"),
        (HEAD + b"\r\n" + bytes(2000), "more than 1000 bytes"),
        (HEAD + b"x: " + b"y" * 2**17, "headers|no HTTP"),
        (HEAD + b"content-encoding: gzip\r\n\r\nabc", "compressed"),
        (b"HTTP/1.1 302 Found\r\nlocation: https://10.0.0.1/\r\n\r\n", "no redirect"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "status 404"),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", "media type"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\nabc", "media type"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: image/svg+xml\r\n\r\n<svg/>", "media type"),
    ],
)
async def test_other_answers_are_refused_by_name(answer: bytes, reason: str) -> None:
    with pytest.raises(HttpError, match=reason) as raised:
        await fetched(answer, most=1000)
    assert (raised.value.status, raised.value.param) == (400, WHERE)
    assert raised.value.message.startswith(f"{WHERE} is 'https://images.example.org")
    assert "data URI" in raised.value.message


@pytest.mark.parametrize("answer", [b"", HEAD, HEAD + b"content-length: 9\r\n\r\nabc"])
async def test_a_host_that_says_no_more_is_left(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_hosts, "_SECONDS", 0.05)
    with pytest.raises(HttpError, match=r"did not come within 0\.05 s"):
        await fetched(answer, is_open=True)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
        "2002:a00:1::",
    ],
)
async def test_addresses_that_are_not_public_are_never_asked(address: str) -> None:
    async def connect(address: str, host: str) -> Any:
        raise AssertionError(f"{host} was asked at {address}")

    for addresses in ([address], [PUBLIC, address]):
        hosts = ImageHosts(["a.example"], resolve=resolving(*addresses), connect=connect)
        with pytest.raises(HttpError, match="not public"):
            await hosts.fetch("https://a.example/", WHERE, BodyRoom(2**20))


async def test_public_addresses_are_tried_in_turn() -> None:
    tried: list[str] = []

    async def connect(address: str, host: str) -> Any:
        tried.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    public = ["2606:4700::1", "::ffff:8.8.8.8", "64:ff9b::808:808", PUBLIC]
    hosts = ImageHosts(["a.example"], resolve=resolving(*public), connect=connect)
    with pytest.raises(HttpError, match="Connection refused"):
        await hosts.fetch("https://a.example/", WHERE, BodyRoom(2**20))
    assert tried == public[:3]


async def test_names_without_an_address_and_bad_certificates_are_told() -> None:
    async def connect(address: str, host: str) -> Any:
        raise ssl.SSLCertVerificationError(1, "certificate verify failed")

    for resolve, reason in ((resolving(), "no address"), (resolving(PUBLIC), "certificate")):
        hosts = ImageHosts(["a.example"], resolve=resolve, connect=connect)
        with pytest.raises(HttpError, match=reason):
            await hosts.fetch("https://a.example/", WHERE, BodyRoom(2**20))


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example.org/a.png",
        "https://images.example.org.evil.example/a.png",
        "https://evil.example/images.example.org",
        "https://evilimages.example.org/",
        "https://images.example.org./a.png",
        "https://images.example.org@evil.example/",
        "https://user:pass@images.example.org/",
        "https://images.example.org:8443/",
        "https://images.example.org:x/",
        "https://images.example.org\\@evil.example/",
        "https://evil.example\\.images.example.org/",
        "https://images.example.org /a",
        "https://images.example.org/a\r\nx: y",
        "https://images.example.org/ä",
        "https://\u0456mages.example.org/",
        "https://[::1]/",
        "https://[/",
        "https://127.0.0.1/",
        "https:///a",
        "https://",
        "https://images.example.org/" + "a" * 5000,
    ],
)
def test_other_urls_are_refused_by_name(url: str) -> None:
    hosts = ImageHosts(["images.example.org"])
    with pytest.raises(HttpError) as raised:
        hosts.check(url, WHERE)
    assert (raised.value.status, raised.value.param) == (400, WHERE)
    assert len(raised.value.message) < 400


def test_targets_have_the_path_and_the_query() -> None:
    hosts = ImageHosts(["images.example.org"])
    for url, target in (
        ("HTTPS://Images.Example.org", "/"),
        ("https://images.example.org:443?a=b#c", "/?a=b"),
        (URL, "/a/b.png?c=d"),
    ):
        assert hosts.check(url, WHERE) == ("images.example.org", target)


def test_without_names_nothing_is_fetched() -> None:
    with pytest.raises(HttpError, match="fetches no images: send the image as a data URI"):
        ImageHosts().check(URL, WHERE)


@pytest.mark.parametrize(
    "names",
    [
        "example.org",
        None,
        5,
        [5],
        [""],
        ["*"],
        ["*.example.org"],
        ["https://example.org"],
        ["example.org:443"],
        ["example.org."],
        ["localhost"],
        ["127.0.0.1"],
        ["::1"],
        ["a..b"],
        ["-a.example"],
        ["a" * 64 + ".example"],
        [".".join(["a"] * 200)],
        ["ä.example"],
        ["example.org\n"],
    ],
)
def test_other_names_are_no_hosts(names: Any) -> None:
    with pytest.raises(ConfigError, match="allow_image_hosts"):
        ImageHosts(names)

"""`ImageHosts`: fetches images from hosts that the operator has allowed by name."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from ...errors import ConfigError
from ...errors.checks import short
from .body_room import BodyRoom
from .http_error import HttpError, bad

__all__ = ["HOST_NAME", "ImageHosts"]

HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
)
"""A full name of a host, in lower case. Addresses are none."""

_SECONDS = 10.0  # for the lookup, the connection and all bytes of an image
_PORT = 443
_LONGEST_URL = 4096
_URL = re.compile(r"https://[!-\[\]-~]+", re.IGNORECASE)  # printable ASCII without a backslash
_PART = 2**16  # bytes that are read at a time
_MOST_HEAD = 2**15  # bytes of the headers of a response
_MOST_TRIED = 3  # addresses of a host
_AT_ONCE = 4  # images of all requests
_MAPPED_IPV4 = IPv6Network("64:ff9b::/96")  # of NAT64

Address = IPv4Address | IPv6Address
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str], Awaitable[list[str]]]
Connect = Callable[[str, str], Awaitable[Streams]]


class ImageHosts:
    """The hosts whose images may be fetched. For one event loop.

    names: exact names of hosts; none: nothing is fetched. most: bytes of an image.
    resolve: returns the addresses of a host. connect: opens a TLS connection to an address, whose
        certificate must be that of the host; called with the address and the host.

    Only https is spoken, at port 443, and no redirect is followed. A host with a private,
    loopback, link-local, multicast or reserved address is refused; the connection goes to the
    address that was checked. Raises ConfigError for names that are no full names of hosts.
    """

    def __init__(
        self,
        names: Collection[str] = (),
        *,
        most: int = 2**25,
        resolve: Resolve | None = None,
        connect: Connect | None = None,
    ) -> None:
        if isinstance(names, str) or not isinstance(names, Collection):
            raise ConfigError(f"allow_image_hosts is {short(names)}; it must be a list of hosts")
        for name in names:
            if not isinstance(name, str) or not HOST_NAME.fullmatch(name.lower()):
                raise ConfigError(
                    f"allow_image_hosts has {short(name)}; it must have full names of hosts, as "
                    "images.example.org, without a port"
                )
        self._names = frozenset(name.lower() for name in names)
        self._most = most
        self._resolve = resolve or _addresses_of
        self._connect = connect or self._connected
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._context: ssl.SSLContext | None = None

    def check(self, url: str, where: str) -> tuple[str, str]:
        """Return the host and the target of a URL that may be fetched. Raises HttpError.

        where: the field of the request.
        """
        if not self._names:
            raise _refused(
                where, url, "this server fetches no images: send the image as a data URI"
            )
        wanted = f"an https URL of at most {_LONGEST_URL} printable ASCII characters"
        if len(url) > _LONGEST_URL or not _URL.fullmatch(url):
            raise bad(where, url[:64], wanted)
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise bad(where, url[:64], wanted) from None
        if "@" in parts.netloc or port not in (None, _PORT):
            raise bad(where, url[:64], f"{wanted}, without a user and at port {_PORT}")
        if host not in self._names:
            way_out = "send the image as a data URI, or have the operator allow the host"
            raise _refused(where, url, f"the host {short(host)} is not allowed: {way_out}")
        return host, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    async def fetch(self, url: str, where: str, room: BodyRoom) -> bytes:
        """Return the image of a URL. room: the memory for its bytes. Raises HttpError.

        where: the field of the request.
        """
        host, target = self.check(url, where)
        try:
            async with self._turns, asyncio.timeout(_SECONDS):
                return await self._fetched(host, target, room)
        except TimeoutError:
            fault = f"it did not come within {_SECONDS:g} s"
        except (OSError, EOFError, UnicodeError) as error:  # ssl.SSLError is an OSError
            fault = getattr(error, "strerror", None) or str(error) or type(error).__name__
        except _FetchError as error:
            fault = str(error)
        raise _refused(where, url, f"{short(fault)[1:-1]}: send the image as a data URI")

    async def _fetched(self, host: str, target: str, room: BodyRoom) -> bytes:
        addresses = await self._resolve(host)
        if not addresses:
            raise _FetchError("the host has no address")
        for address in addresses:
            if not _is_public(ip_address(address.partition("%")[0])):
                raise _FetchError("the host has an address that is not public")
        reader, writer = await self._first_connected(addresses, host)
        try:
            writer.write(
                f"GET {target} HTTP/1.1\r\nhost: {host}\r\nuser-agent: pybatcher\r\n"
                "accept: image/*\r\naccept-encoding: identity\r\nconnection: close\r\n\r\n".encode()
            )
            await writer.drain()
            return await self._received(reader, room)
        finally:
            writer.transport.abort()  # the rest is not wanted, and no goodbye is waited for
            with suppress(OSError):
                await writer.wait_closed()

    async def _received(self, reader: asyncio.StreamReader, room: BodyRoom) -> bytes:
        """Return the body of a response that is an image."""
        import httptools

        response = _Response(self._most)
        parser = response.parser = httptools.HttpResponseParser(response)
        n_read = 0
        with room.one() as taken:
            while not response.is_complete and (data := await reader.read(_PART)):
                n_read += len(data)
                try:
                    parser.feed_data(data)
                except httptools.HttpParserError as error:
                    # Errors of the callbacks come as the cause of one of the parser.
                    cause = error.__context__
                    if isinstance(cause, (_FetchError, HttpError)):
                        raise cause from None
                    raise _FetchError(f"its response is no HTTP: {error}") from None
                if not response.has_head and n_read > _MOST_HEAD:
                    raise _FetchError(f"its headers have more than {_MOST_HEAD} bytes")
                taken.take(2 * response.size)  # in parts, and in one piece
            if not response.has_head or not (response.is_complete or response.ends_with_connection):
                raise _FetchError("the connection ended before the image did")
            return b"".join(response.parts)

    async def _first_connected(self, addresses: list[str], host: str) -> Streams:
        """Return a connection to the first of the addresses that takes one."""
        for address in addresses[:_MOST_TRIED]:
            try:
                return await self._connect(address, host)
            except OSError as error:
                failure = error
        raise failure

    async def _connected(self, address: str, host: str) -> Streams:
        if self._context is None:
            self._context = await asyncio.to_thread(ssl.create_default_context)
        return await asyncio.open_connection(
            address, _PORT, ssl=self._context, server_hostname=host, limit=_PART
        )


class _FetchError(Exception):
    """An image that cannot be fetched; the text is the reason."""


class _Response:
    """Collects the body of a response; the callbacks of httptools have these names."""

    def __init__(self, most: int) -> None:
        self.parser: object = None
        self.parts: list[bytes] = []
        self.size = 0
        self.has_head = self.is_complete = False
        self.ends_with_connection = True
        self._most = most
        self._kind = ""

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"content-type":
                self._kind = value.decode("latin-1").partition(";")[0].strip().lower()
            case b"content-length" | b"transfer-encoding":
                self.ends_with_connection = False
            case b"content-encoding" if value.strip().lower() not in (b"", b"identity"):
                raise _FetchError("its response is compressed, which was not asked for")

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()  # type: ignore[attr-defined]
        if 300 <= status < 400:
            raise _FetchError(f"its host answers with status {status}; no redirect is followed")
        if status != 200:
            raise _FetchError(f"its host answers with status {status}")
        if not self._kind.startswith("image/") or self._kind.startswith("image/svg"):
            raise _FetchError(f"its media type is {short(self._kind)}, which is no image of pixels")
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self.size += len(body)
        if self.size > self._most:
            raise _FetchError(f"it has more than {self._most} bytes")
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


def _refused(where: str, url: str, reason: str) -> HttpError:
    """Return the error of an image that is not fetched."""
    message = f"{where} is {short(url[:64])}, which cannot be fetched: {reason}"
    return HttpError(400, message, code="invalid_value", param=where)


def _is_public(address: Address) -> bool:
    """Return whether an address, and one inside it, is of the public Internet."""
    inner: list[Address | None] = []
    if isinstance(address, IPv6Address):
        inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _MAPPED_IPV4:
            inner.append(IPv4Address(int(address) % 2**32))
        if address.ipv4_mapped is not None:
            return _is_public(address.ipv4_mapped)
    all_global = all(one.is_global for one in (address, *inner) if one is not None)
    return all_global and not address.is_multicast


async def _addresses_of(host: str) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, _PORT, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))

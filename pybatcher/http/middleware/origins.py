"""`Origins`: middleware that decides which browser pages can use the server."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import ConfigError
from ..base.http_error import HttpError, refusal

__all__ = ["AllowedOrigins", "Origins", "check_origins"]

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+")
_SECONDS = b"600"  # seconds for which a browser can cache the answer to a preflight request


def check_origins(origins: object) -> tuple[str, ...]:
    """Return the origins whose pages can send requests. Raises ConfigError."""
    wanted = "allow_origins must be a list of origins as https://host:port, or of '*' for all"
    if isinstance(origins, (str, bytes)) or not isinstance(origins, Collection):
        raise ConfigError(wanted)
    for origin in origins:
        if not isinstance(origin, str) or not (origin == "*" or _ORIGIN.fullmatch(origin)):
            raise ConfigError(f"{wanted}; it has {origin!r}")
    return tuple(origins)


class AllowedOrigins:
    """The origins whose pages can send requests. They can be replaced at any time."""

    def __init__(self, origins: object = ()) -> None:
        self.replace(origins)

    def replace(self, origins: object) -> None:
        """Allow these origins and no others. Raises ConfigError."""
        self._origins = check_origins(origins)

    def __contains__(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins


class Origins:
    """Refuses requests of pages from origins other than the server's own and the allowed ones.

    Browsers send simple requests of any page to any address, including a server on loopback. They
    only keep the page from reading the answer. Requests without an origin do not come from a page.

    allowed: the origins whose pages can also read answers.
    """

    def __init__(self, app: ASGIApp, *, allowed: AllowedOrigins) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, refuse it, or answer a preflight request."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("origin")
        if origin is None:
            await self._app(scope, receive, send)
        elif origin in self._allowed:
            await self._answer(origin, headers, scope, receive, send)
        elif _is_own(origin, headers, scope):
            await self._app(scope, receive, send)
        else:
            error = HttpError(
                403,
                f"pages of {origin} may not ask this server; allow_origins says which may",
                type="permission_error",
                code="origin_not_allowed",
            )
            await refusal(error, scope)(scope, receive, send)

    async def _answer(
        self, origin: str, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> None:
        told = [(b"access-control-allow-origin", origin.encode()), (b"vary", b"origin")]
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            asked = headers.get("access-control-request-headers", "")
            answer = Response(status_code=204)
            answer.raw_headers += [
                *told,
                (b"access-control-allow-methods", b"GET, HEAD, POST"),
                (b"access-control-allow-headers", asked.encode()),
                (b"access-control-max-age", _SECONDS),
            ]
            await answer(scope, receive, send)
            return

        async def send_told(message: Message) -> None:
            if message["type"] == "http.response.start":
                shown = (b"access-control-expose-headers", b"*")
                message["headers"] = [*message["headers"], *told, shown]
            await send(message)

        await self._app(scope, receive, send_told)


def _is_own(origin: str, headers: Headers, scope: Scope) -> bool:
    """Return True if the page came from this server.

    A server on loopback accepts only loopback names as its own: a page of another name could come
    from a different server, whose name was then pointed at loopback (DNS rebinding).
    """
    try:
        page = urlsplit(origin)
        host, name = page.netloc, page.hostname or ""
    except ValueError:
        return False
    if not host or host.lower() != headers.get("host", "").lower():
        return False
    return not _is_loopback((scope.get("server") or ("",))[0]) or _is_loopback(name)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False

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
from ...errors.checks import short
from ..base.http_error import HttpError, refusal

__all__ = ["AllowedOrigins", "Origins", "check_hosts", "check_origins"]

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+")
_HOST = re.compile(r"[^\s/:?#@*\[\]]+")
_SECONDS = b"600"  # seconds for which a browser can cache the answer to a preflight request


def check_origins(origins: object) -> tuple[str, ...]:
    """Return the origins whose pages can send requests. Raises ConfigError."""
    wanted = "allow_origins must be a list of origins as https://host:port, or of '*' for all"
    return _all_matching(origins, _ORIGIN, wanted)


def check_hosts(hosts: object) -> tuple[str, ...]:
    """Return the names that a request's Host may have, in lower case. Raises ConfigError."""
    wanted = "allow_hosts must be a list of host names without a port, or of '*' for all"
    return tuple(host.lower() for host in _all_matching(hosts, _HOST, wanted))


def _all_matching(texts: object, pattern: re.Pattern[str], wanted: str) -> tuple[str, ...]:
    """Return texts each of which is '*' or matches the pattern. Raises ConfigError."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Collection):
        raise ConfigError(wanted)
    for text in texts:
        if not isinstance(text, str) or not (text == "*" or pattern.fullmatch(text)):
            raise ConfigError(f"{wanted}; it has {text!r}")
    return tuple(texts)


class AllowedOrigins:
    """The origins whose pages can send requests, and the names by which requests can call a server.

    They can be replaced at any time. Raises ConfigError.
    """

    def __init__(self, origins: object = (), hosts: object = ()) -> None:
        self.replace(origins, hosts)

    def replace(self, origins: object, hosts: object = ()) -> None:
        """Allow these origins and hosts, and no others. Raises ConfigError."""
        self._origins = check_origins(origins)
        named = (urlsplit(origin).hostname or "" for origin in self._origins)
        self._hosts = {*check_hosts(hosts), *named}

    def __contains__(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins

    def has_host(self, name: str) -> bool:
        """Return True for a name in `allow_hosts` or in an allowed origin."""
        return name in self._hosts or "*" in self._hosts or "*" in self._origins


class Origins:
    """Refuses requests of pages from origins other than the server's own and the allowed ones.

    Browsers send simple requests of any page to any address, including a server on loopback. They
    only keep the page from reading the answer. A request without an origin does not come from a
    page, unless the browser says that it comes from another site, or it calls a server on loopback
    by a foreign name: whoever owns a name can point it at loopback (DNS rebinding), and a page of
    that name can read the answers.

    allowed: the origins whose pages can also read answers, and the names that are not foreign.
    """

    def __init__(self, app: ASGIApp, *, allowed: AllowedOrigins) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, refuse it, or answer a preflight request."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("origin")
        if (error := self._foreign(origin, headers, scope)) is not None:
            await refusal(error, scope)(scope, receive, send)
        elif origin is None or origin not in self._allowed:
            await self._app(scope, receive, send)
        else:
            await self._answer(origin, headers, scope, receive, send)

    def _foreign(self, origin: str | None, headers: Headers, scope: Scope) -> HttpError | None:
        """Return the error for a request that a foreign page may have caused, else None."""
        host = headers.get("host", "")
        if not self._is_own_host(host, scope):
            return HttpError(
                403,
                f"this server is on loopback and has no name {short(host)}; call it by localhost "
                "or its address, or give the name in allow_hosts",
                type="permission_error",
                code="host_not_allowed",
            )
        if origin is None:
            is_foreign = _is_of_another_site(headers, scope) and "*" not in self._allowed
            origin = "another site"
        else:
            is_foreign = origin not in self._allowed and not _is_own(origin, headers, scope)
        if not is_foreign:
            return None
        return HttpError(
            403,
            f"pages of {origin} may not ask this server; allow_origins says which may",
            type="permission_error",
            code="origin_not_allowed",
        )

    def _is_own_host(self, host: str, scope: Scope) -> bool:
        """Return True unless the server is on loopback and the host is a foreign name.

        An address is never foreign, because nobody can point it elsewhere. A request without a
        host does not come from a browser.
        """
        if not host or not _is_loopback((scope.get("server") or ("",))[0] or ""):
            return True
        name = _name_of(host)
        return name is not None and (
            _is_loopback(name) or _is_address(name) or self._allowed.has_host(name)
        )

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


def _is_of_another_site(headers: Headers, scope: Scope) -> bool:
    """Return True if a browser says that another site caused the request.

    A link of another site may lead to the page: it becomes a document of its own.
    """
    if headers.get("sec-fetch-site") != "cross-site":
        return False
    what = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return not (what == ("navigate", "document") and scope["method"] == "GET" and path == "/")


def _name_of(host: str) -> str | None:
    """Return the name or address in a Host header, in lower case; None if it has neither."""
    try:
        found = urlsplit(f"//{host}")
        _ = found.port  # raises ValueError
    except ValueError:
        return None
    is_plain = found.netloc == host and "@" not in host
    return (found.hostname or "").removesuffix(".") or None if is_plain else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False

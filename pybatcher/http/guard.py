"""`Guard`: the middleware that asks for keys and names requests."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ConfigError
from .http_error import HttpError, error_body, is_messages

__all__ = ["Guard"]

_OPEN = ("/health", "/v1/health", "/")
_PAGE = "/page/"  # what the page is made of; it asks for the key that its requests need
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Guard:
    """Refuses requests without a key, where keys are asked for; gives each request an id.

    api_keys: None: none is asked for. Each is a namespace of the prefix cache: nobody can find out
        by its times what another one's prompts begin with.
    """

    def __init__(self, app: ASGIApp, *, api_keys: Collection[str] | None) -> None:
        self._app = app
        self._keys: list[tuple[bytes, str]] | None = None
        if api_keys is not None:
            if isinstance(api_keys, (str, bytes)) or not api_keys:
                raise ConfigError("api_keys must be a list of at least one text, or None")
            self._keys = [self._known(key) for key in api_keys]

    @staticmethod
    def _known(key: object) -> tuple[bytes, str]:
        if not isinstance(key, str) or not key or not key.isascii():
            raise ConfigError("api_keys has a key that is no text of ASCII characters")
        data = key.encode()
        return data, "key-" + hashlib.sha256(data).hexdigest()[:16]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        own = asked if _ID.fullmatch(asked) else "req-" + secrets.token_hex(12)
        scope["pybatcher.request_id"] = own
        named = [(b"x-request-id", own.encode())]
        if is_messages(scope):
            named.append((b"request-id", own.encode()))

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *named]
            await send(message)

        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self._keys is not None and path not in _OPEN and not path.startswith(_PAGE):
            namespace = self._namespace(headers)
            if namespace is None:
                await _refuse(scope, send_named)
                return
            scope["pybatcher.namespace"] = namespace
        await self._app(scope, receive, send_named)

    def _namespace(self, headers: Headers) -> str | None:
        """Return the namespace of the key that a request has; None: it has none that is known."""
        given = headers.get("x-api-key") or ""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if not given and scheme.lower() == "bearer":
            given = token.strip()
        data, found = given.encode("utf-8", "replace"), None
        for key, namespace in self._keys or ():  # all of them, so that time tells nothing
            if hmac.compare_digest(key, data):
                found = namespace
        return found


async def _refuse(scope: Scope, send: Send) -> None:
    error = HttpError(
        401,
        "there is no API key, or it is not known here: send one as a Bearer token or in x-api-key",
        type="authentication_error",
        code="invalid_api_key",
    )
    body = json.dumps(error_body(error, scope)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})

"""`Guard`: middleware that checks API keys and pauses calls that are not read."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...calls.backpressure import CURRENT_BACKPRESSURE, Backpressure
from ..base.http_error import HttpError, refusal
from .api_keys import ApiKeys

__all__ = ["BEGINS_EVENTS", "Guard"]

BEGINS_EVENTS = "pybatcher.begins_events"
"""A key of the ASGI scope's extensions. Its "note" is called before an event stream begins."""

_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_MOST_UNREAD = 16  # unread pieces of an output, apart from socket buffers
_OPEN = ("/health", "/v1/health", "/")
_PAGE = "/page/"  # the page's files need no key; the page asks for the key that its requests need


class Guard:
    """Refuses requests without a valid key.

    The calls of a request share one `Backpressure`, so that they pause while the client does not
    read.

    api_keys: as in `ApiKeys`. Raises ConfigError.
    """

    def __init__(self, app: ASGIApp, *, api_keys: Collection[str] | ApiKeys | None) -> None:
        self._app = app
        self._keys = api_keys if isinstance(api_keys, ApiKeys) else ApiKeys(api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self._keys.are_asked_for and path not in _OPEN and not path.startswith(_PAGE):
            found = [self._keys.namespace_of(key) for key in _keys_in(headers)]
            namespace = next((one for one in found if one is not None), None)
            if namespace is None:
                await refusal(_no_key(), scope)(scope, receive, send)
                return
            scope["pybatcher.namespace"] = namespace

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start" and _EVENTS in message["headers"]:
                scope["extensions"][BEGINS_EVENTS]["note"]()
            await send(message)

        before = CURRENT_BACKPRESSURE.set(Backpressure(_MOST_UNREAD))
        is_noted = BEGINS_EVENTS in scope.get("extensions", ())
        try:
            await self._app(scope, receive, send_noted if is_noted else send)
        finally:  # a program can run the application in a task of its own
            CURRENT_BACKPRESSURE.reset(before)


def _keys_in(headers: Headers) -> tuple[str, str]:
    """Return the keys of a request, either of which is sufficient. "": there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return headers.get("x-api-key", ""), bearer


def _no_key() -> HttpError:
    return HttpError(
        401,
        "there is no API key, or it is not known here: send one as a Bearer token or in x-api-key",
        type="authentication_error",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )

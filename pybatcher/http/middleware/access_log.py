"""`AccessLog`: middleware that gives each request an id, and logs each request at its end."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...access_log import LOGGER, AccessLine
from ...calls.telemetry import CURRENT_COUNTS, CallCounts
from ..base.event_stream import FAILED
from ..base.http_error import is_anthropic
from .api_keys import hash_in

__all__ = ["AccessLog"]

_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_CLIENT_GONE = 499


class AccessLog:
    """Passes every request on with an id, which the response has too.

    The id is that of the header `x-request-id` if it has 1 to 128 printable ASCII characters, else
    a new one. A line is logged if the logger "pybatcher.access" takes lines of the level INFO.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log it when its response has ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        own = asked if _ID.fullmatch(asked) else b"req-" + secrets.token_hex(12).encode()
        scope["pybatcher.request_id"] = own.decode()
        named = [(b"x-request-id", own)]
        if is_anthropic(scope):
            named.append((b"request-id", own))
        status: int | None = None
        is_complete = False

        async def send_named(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *named]
            elif message["type"] == "http.response.body":
                is_complete = not message.get("more_body", False)
            await send(message)

        if not LOGGER.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send_named)
            return
        counts = CallCounts()
        before = CURRENT_COUNTS.set(counts)
        outcome = "error"
        try:
            await self._app(scope, receive, send_named)
            if status == _CLIENT_GONE or not is_complete:
                outcome = "disconnected"
            elif status is not None and status < 400 and not scope.get(FAILED):
                outcome = "finished"
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception:
            status = status or 500  # the server sends it
            raise
        finally:  # a program can run the application in a task of its own
            CURRENT_COUNTS.reset(before)
            AccessLine(
                protocol="http",
                operation=scope["method"],
                route=scope["path"],
                counts=counts,
                status=status,
                outcome=outcome,
                key=hash_in(scope.get("pybatcher.namespace")),
                request_id=own.decode(),
            ).write()

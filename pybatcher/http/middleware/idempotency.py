"""`Idempotency`: middleware that answers requests with the same idempotency key once."""

from __future__ import annotations

import asyncio
import hashlib
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ...web import ClientGoneError
from ..base.body_room import BodyRoom
from ..base.connection import read_bytes, until_gone
from ..base.http_error import HttpError, refusal
from .stored_replies import HEADER, KeepLimits, StoredReplies

__all__ = ["Idempotency"]

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_REPLAYED: tuple[tuple[bytes, bytes], ...] = ((b"idempotent-replayed", b"true"),)
_SMALL = 2**16  # bytes that are hashed in much less than a millisecond


class Idempotency:
    """Gives requests with the same key and body the same response, from its beginning.

    A request with a key outlives its client for some time, so that the client can come back for the
    response. Requests without a key pass unchanged.

    max_body: the most bytes of a request's body. room: the memory for the bodies of all requests.
    """

    def __init__(
        self, app: ASGIApp, *, max_body: int, room: BodyRoom, limits: KeepLimits | None = None
    ) -> None:
        self._app = app
        self._max_body = max_body
        self._room = room
        self._limits = limits or KeepLimits()
        self._kept: dict[str | None, StoredReplies] = {}  # by namespace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = headers.get(HEADER)
        if key is None:
            await self._app(scope, receive, send)
            return
        try:
            if not _KEY.fullmatch(key):
                wanted = "of 1 to 255 ASCII characters without spaces"
                raise HttpError(400, f"{HEADER} must be {wanted}", param=HEADER)
            with self._room.one() as taken:
                body = await read_bytes(headers, receive, self._max_body, taken)
            await self._answer(key, body, scope, receive, send)
        except HttpError as error:
            await refusal(error, scope)(scope, receive, send)
        except ClientGoneError:
            pass

    async def _answer(
        self, key: str, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        digest = hashlib.sha256(scope["path"].encode("utf-8", "replace") + b"\0")
        if len(body) <= _SMALL:
            digest.update(body)
        else:
            await asyncio.to_thread(digest.update, body)
        kept = self._kept.setdefault(scope.get("pybatcher.namespace"), StoredReplies(self._limits))
        response = kept.find(key, digest.digest())
        is_new = response is None
        if response is None:
            response = kept.begin(key, digest.digest(), lambda *ends: self._app(scope, *ends), body)
        del body
        client = kept.join(response)
        try:
            await until_gone(receive, response.send_to(client, send, () if is_new else _REPLAYED))
        finally:
            kept.leave(key, response, client)

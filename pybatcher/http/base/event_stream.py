"""`EventStream`: a response of server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from ...calls.completion import Piece
from ...calls.stream import Stream
from ...errors import PybatcherError
from .connection import until_gone
from .http_error import HttpError, http_error

__all__ = ["DONE", "EventStream", "event", "steps_of"]

DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """Return one event. name: the name of the event; "": none."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode("utf-8", "replace")


async def steps_of(stream: Stream, first: Piece) -> AsyncGenerator[list[Piece]]:
    """Yield the pieces of a stream; pieces that arrived together are in one list.

    first: the piece that was read before the response began.
    """
    pieces = [first, *stream.ready()]
    yield pieces
    async for piece in stream:
        yield [piece, *stream.ready()]


class Closable(Protocol):
    """A source of events that can be closed before its end: a stream or a generator."""

    async def aclose(self) -> None:
        """Cancel the work that has not ended. A second call does nothing."""


class EventStream:
    """An ASGI response that sends events until they end or the client disconnects.

    events: the bytes of the events. If they raise an error, a last event reports it, because the
        client already has status 200. They are closed in any case.
    source: the stream or generator behind the events. It is closed after them, because a generator
        that was never started does not close its source.
    tell: returns the bytes of the last event for an error.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        headers: Iterable[tuple[str, str]] = (),
        tell: Any = None,
        *,
        source: Closable,
    ) -> None:
        self._events = events
        self._source = source
        self._headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *((name.encode(), value.encode()) for name, value in headers),
        ]
        self._tell = tell or (lambda error: event(error.body()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. Returns when it is complete or the client has disconnected."""
        async with aclosing(self._source), aclosing(self._events):
            await until_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        try:
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except PybatcherError as error:
            await self._last(send, http_error(error))
        except HttpError as error:
            await self._last(send, error)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _last(self, send: Send, error: HttpError) -> None:
        data = self._tell(error)
        await send({"type": "http.response.body", "body": data, "more_body": True})

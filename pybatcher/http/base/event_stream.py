"""`EventStream`: a response of server-sent events, made of the pieces of an output."""

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
    """Return one event. name: of the event; "": it has none."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode("utf-8", "replace")


async def steps_of(stream: Stream, first: Piece) -> AsyncGenerator[list[Piece]]:
    """Return the pieces of a stream, those that have come together in a list.

    first: the piece that was read before the response could begin.
    """
    pieces = [first, *stream.ready()]
    yield pieces
    async for piece in stream:
        yield [piece, *stream.ready()]


class Closable(Protocol):
    """A source of events that can be closed before its end: a stream, or a generator."""

    async def aclose(self) -> None:
        """Cancel what has not ended. Does nothing the second time."""


class EventStream:
    """An ASGI response that sends events until they end or the client hangs up.

    events: their bytes. What they raise is told in one last event: the client has had a status of
        200 already. They are closed in any case.
    source: what the events are made of. It is closed after them: a generator that was never
        started, as the client has gone before it had the head, closes nothing itself.
    tell: returns the bytes of that last event.
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
        """Send the response. Returns when it is sent, or the client has gone."""
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

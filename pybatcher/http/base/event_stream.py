"""`EventStream`: a response of server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ...calls.completion import Piece
from ...calls.stream import Stream
from ...errors import PybatcherError
from ...web import unless_gone
from .connection import until_gone
from .http_error import HttpError, http_error, internal_error

if TYPE_CHECKING:
    from typing import Self

__all__ = ["DONE", "FAILED", "EventStream", "event", "steps_of"]

FAILED = "pybatcher.failed"
"""A key of the ASGI scope. True: the last event of the response reports an error."""

DONE = b"data: [DONE]\n\n"
_COMMENT = b": keep-alive\n\n"
_PATIENCE = 1.0  # seconds in which an error becomes the status of the response
_QUIET = 5.0  # seconds without an event until a comment is sent
_LOGGER = logging.getLogger("pybatcher.http")


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """Return one event. name: the name of the event; "": none."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode("utf-8", "replace")


async def steps_of(stream: Stream) -> AsyncGenerator[list[Piece]]:
    """Yield the pieces of a stream; pieces that arrived together are in one list."""
    async for piece in stream:
        yield [piece, *stream.ready()]


class Closable(Protocol):
    """A source of events that can be closed before its end: a stream or a generator."""

    async def aclose(self) -> None:
        """Cancel the work that has not ended. A second call does nothing."""


class EventStream:
    """An ASGI response that sends events until they end or the client disconnects.

    While no event arrives, it sends a comment every few seconds, because clients and proxies close
    a connection on which nothing arrives for a time.

    events: the bytes of the events. If they raise an error after the response has begun, a last
        event reports it, because the client already has status 200. They are closed in any case.
    source: the stream or generator behind the events. It is closed after them, because a generator
        that was never started does not close its source.
    tell: returns the bytes of the last event for an error.
    opening: events that are sent first, at once.
    comment: the bytes that are sent while no event arrives.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        tell: Any = None,
        *,
        source: Closable,
        opening: bytes = b"",
        comment: bytes = _COMMENT,
    ) -> None:
        self._events = events
        self._source = source
        self._tell = tell or (lambda error: event(error.body()))
        self._opening = opening
        self._comment = comment
        self._first: asyncio.Future[bytes | None] | None = None
        self._turn = asyncio.Lock()  # an event and a comment are sent one after the other
        self._last_sent = 0.0

    async def begun(self, request: Request) -> Self:
        """Wait for the first event, for at most a second, and return this response.

        An error within this time is raised, so that it becomes the status of the response. Raises
        ClientGoneError.
        """
        first = self._first = asyncio.ensure_future(anext(self._events, None))
        try:
            await unless_gone(request, asyncio.wait({first}, timeout=_PATIENCE))
            if first.done():
                first.result()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def aclose(self) -> None:
        """Cancel the work behind the events that have not been sent."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        async with aclosing(self._source):
            await self._events.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. Returns when it is complete or the client has disconnected."""
        async with aclosing(self):
            await until_gone(receive, self._send(scope, send))

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        commenting = asyncio.ensure_future(self._send_comments(send))
        try:
            is_late = self._first is not None and not self._first.done()
            if opening := self._opening or (self._comment if is_late else b""):
                await self._pass_on(opening, send)
            if self._first is not None and (data := await self._first) is not None:
                await self._pass_on(data, send)
            async for data in self._events:
                await self._pass_on(data, send)
        except PybatcherError as error:
            await self._fail(http_error(error), scope, send)
        except HttpError as error:
            await self._fail(error, scope, send)
        except OSError:  # of the connection
            raise
        except Exception as error:
            _LOGGER.exception("a request failed")
            await self._fail(internal_error(error), scope, send)
        finally:
            commenting.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _fail(self, error: HttpError, scope: Scope, send: Send) -> None:
        scope[FAILED] = True
        await self._pass_on(self._tell(error), send)

    async def _pass_on(self, data: bytes, send: Send) -> None:
        async with self._turn:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._last_sent = asyncio.get_running_loop().time()

    async def _send_comments(self, send: Send) -> None:
        """Send a comment whenever no event was sent for some seconds, until cancelled.

        No comment is sent while an event waits for the client to read.
        """
        loop = asyncio.get_running_loop()
        self._last_sent = loop.time()
        while True:
            await asyncio.sleep(self._last_sent + _QUIET - loop.time())
            if self._turn.locked():
                self._last_sent = loop.time()
            elif loop.time() >= self._last_sent + _QUIET:
                await self._pass_on(self._comment, send)


_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

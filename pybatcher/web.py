"""Helpers for programs that serve a batcher with a web framework of their own.

    from pybatcher.web import http_headers, http_status, text_stream, unless_gone

They import no framework. `unless_gone` is for requests of Starlette, and so of FastAPI; the others
are for any framework. `pybatcher.http.application` is a whole application instead.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from .calls.completion import Piece
from .calls.stream import ClosablePieces
from .calls.threads.streams import BlockingStream
from .errors import (
    BatcherClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    KvCacheFullError,
    ModelFormatError,
    NoFreeSequenceError,
    QueueFullError,
)

__all__ = [
    "ClientGoneError",
    "blocking_text_stream",
    "http_headers",
    "http_status",
    "hung_up",
    "text_stream",
    "unless_gone",
]

T = TypeVar("T")

_STATUSES: Mapping[type[Exception], int] = {
    InvalidRequestError: 400,
    ModelFormatError: 400,
    QueueFullError: 429,
    BatcherClosedError: 503,
    ConnectionLostError: 503,
    KvCacheFullError: 503,
    NoFreeSequenceError: 503,
    DeadlineExceededError: 504,
}


class ClientGoneError(Exception):
    """The client has disconnected, so that no response is sent."""


class HasReceive(Protocol):
    """A request of Starlette or FastAPI, of which only `receive` is used."""

    @property
    def receive(self) -> Callable[[], Awaitable[Any]]:
        """Returns the next message of the client, as ASGI defines them."""


def http_status(error: BaseException) -> int:
    """Return the HTTP status of an error.

    400 for a request that cannot be served as it is written, 429 for a full queue, 504 for a
    timeout, 503 for a batcher that is closed or out of reach, or has no room for the request, 499
    for a `ClientGoneError`, 500 for any other error.
    """
    if isinstance(error, ClientGoneError):
        return 499
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 500)


def http_headers(error: BaseException) -> dict[str, str]:
    """Return the headers of the response for an error: `retry-after` for a full queue."""
    if isinstance(error, QueueFullError):
        return {"retry-after": str(math.ceil(max(error.retry_after, 0.0)))}
    return {}


async def unless_gone(request: HasReceive, work: Awaitable[T]) -> T:
    """Return the result of `work`; cancel it if the client disconnects first.

        answer = await unless_gone(request, batcher.generate(prompt))

    Raises ClientGoneError. The body must have been read, so that the next message from the client
    is the end of its connection.
    """
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(hung_up(request.receive))
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError("the client has disconnected")
        return working.result()
    finally:
        working.cancel()
        listening.cancel()
        del working  # it has the error, whose frames refer to it: a reference cycle


async def hung_up(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return when the client has disconnected. receive: that of an ASGI application."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def text_stream(stream: ClosablePieces) -> AsyncGenerator[str]:
    """Return the texts of a stream once its first piece has come.

        texts = await unless_gone(request, text_stream(batcher.stream(prompt)))
        return StreamingResponse(texts, media_type="text/plain; charset=utf-8")

    A request that is refused, or fails before its first piece, raises its error here, before the
    response has a status. A generator that is closed, cancelled or dropped cancels the request. For
    one output (`n` = 1): pieces of several would be mixed.
    """
    return _texts(await anext(stream, None), stream)


async def _texts(first: Piece | None, stream: ClosablePieces) -> AsyncGenerator[str]:
    async with stream:
        if first is not None and first.text:
            yield first.text
        async for piece in stream:
            if piece.text:
                yield piece.text


def blocking_text_stream(stream: BlockingStream) -> Iterator[str]:
    """Return the texts of a blocking stream once its first piece has come.

        texts = blocking_text_stream(batcher.stream(prompt))
        return flask.Response(texts, mimetype="text/plain")

    It is `text_stream` for frameworks without asyncio, such as Flask and Django.
    """
    return _blocking_texts(next(stream, None), stream)


def _blocking_texts(first: Piece | None, stream: BlockingStream) -> Generator[str]:
    with stream:
        if first is not None and first.text:
            yield first.text
        for piece in stream:
            if piece.text:
                yield piece.text

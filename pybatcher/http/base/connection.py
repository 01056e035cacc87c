"""The two ends of a request: its body, read within limits, and a client that may go away."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from .body_room import BodyRoom, TakenRoom
from .http_error import HttpError

__all__ = ["ClientGoneError", "hung_up", "read_body", "read_bytes", "unless_gone", "until_gone"]

T = TypeVar("T")

_SMALL = 2**16  # bytes of JSON that are read in well under a millisecond
_MOST_VALUES = 2**20  # and names of a body: three bytes of JSON may be a hundred in memory


class ClientGoneError(Exception):
    """The client has hung up: nobody is told anything."""


async def read_body(request: Request, most: int, room: BodyRoom) -> dict[str, Any]:
    """Return the JSON object of a request's body.

    most: bytes. room: which it takes until it is parsed. Raises HttpError for a body that is
    larger, finds no room or is no JSON object, and ClientGoneError.
    """
    with room.one() as taken:
        data = await read_bytes(request.headers, request.receive, most, taken)
        try:
            body = _parsed(data) if len(data) <= _SMALL else await asyncio.to_thread(_parsed, data)
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"the body is no JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be a JSON object", code="invalid_json")
    return body


def _parsed(data: bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError, RecursionError and HttpError.

    No other thread runs while json parses; so it must not take long, whatever the text is.
    """
    if len(data) > _MOST_VALUES and len(data) - len(data.translate(None, b",:[{")) > _MOST_VALUES:
        message = f"the body has more than {_MOST_VALUES} values: each of ',:[{{' counts as one"
        raise HttpError(413, message, code="body_too_large")
    was_enabled = gc.isenabled()
    gc.disable()  # it would look at all new objects again and again, and find none to free
    try:
        return json.loads(data)
    finally:
        if was_enabled:
            gc.enable()


async def read_bytes(
    headers: Mapping[str, str], receive: Receive, most: int, taken: TakenRoom
) -> bytes:
    """Return the body of a request; what there is of it takes room.

    Raises HttpError where it is larger or finds no room, and ClientGoneError.
    """
    said = headers.get("content-length", "")
    if said.isdecimal() and (len(said) > 20 or int(said) > most):
        raise _too_large(most)
    parts, size, has_more = [], 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _too_large(most)
        taken.take(size)
        parts.append(part)
        has_more = message.get("more_body", False)
    return b"".join(parts)


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`; cancel it where the client hangs up first.

    Raises ClientGoneError. The body has to be read: nothing but the end of the connection comes.
    """
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(hung_up(request.receive))
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        working.cancel()
        listening.cancel()


async def until_gone(receive: Receive, work: Awaitable[None]) -> None:
    """Do `work` until it is done, or cancel it where the client hangs up first."""
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(hung_up(receive))
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        listening.cancel()
        working.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await working


async def hung_up(receive: Receive) -> None:
    """Return when the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body has more than {most} bytes", code="body_too_large")

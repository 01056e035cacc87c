"""Reads the body of a request within limits, and watches for a client that disconnects."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import secrets
import string
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import Receive

from ...errors.checks import short
from ...web import ClientGoneError, hung_up
from .body_room import BodyRoom, TakenRoom
from .http_error import HttpError

__all__ = ["CheckCommas", "read_body", "read_bytes", "until_gone"]

_PART = 2**20  # bytes of a compressed body that are decoded at a time
_LONG = 2**16  # bytes of a text that is read apart from the other values
_SMALL = 2**16  # bytes of JSON that parse in much less than a millisecond
# Values and names of a body: three bytes of JSON can become a hundred bytes in memory.
_MOST_VALUES = 2**20
_BYTES_OF_VALUE = 48  # of memory, with its place in a list; copies of it come afterwards

CheckCommas = Callable[[int], Awaitable[None]]
"""Raises HttpError for a body with that number of commas or more."""


async def read_body(
    request: Request, most: int, room: BodyRoom, check: CheckCommas | None = None
) -> dict[str, Any]:
    """Return the JSON object of a request's body.

    most: the limit on its bytes. room: the memory that the body occupies until it is parsed.
    check: refuses a body by its commas, before it is kept and parsed. Raises HttpError if the body
        is larger, also after decompression, if there is no room, or if it is not a JSON object.
        Raises ClientGoneError.
    """
    with room.one() as taken:
        data = await read_bytes(request.headers, request.receive, most, taken, check)
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            async with room.parsing:
                data = await asyncio.to_thread(_decoded, data, coding, most, room)
            taken.take(len(data))
            if check is not None:
                await check(data.count(b","))
        try:
            if len(data) <= _SMALL:
                body = _parsed(data)
            else:
                async with room.parsing:
                    body = await asyncio.to_thread(_parsed, data, room)
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"the body is no JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be a JSON object", code="invalid_json")
    return body


def _decoded(data: bytes, coding: str, most: int, room: BodyRoom) -> bytes:
    """Return a compressed body as it was before, of at most `most` bytes.

    room: checks the memory for the next part of it. Raises HttpError.
    """
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise HttpError(
            415,
            f"content-encoding is {short(coding)}; it must be gzip, deflate or identity",
            code="unsupported_encoding",
            param="content-encoding",
            headers={"accept-encoding": "gzip, deflate"},
        )
    reading = zlib.decompressobj(zlib.MAX_WBITS | 32)  # detects the headers of gzip and of zlib
    parts: list[bytes] = []
    size, is_more = 0, True
    while is_more:
        try:
            parts.append(reading.decompress(data, _PART))
        except zlib.error as error:
            message = f"the body is not compressed with {coding}: {error}"
            raise HttpError(
                400, message, code="invalid_encoding", param="content-encoding"
            ) from None
        size += len(parts[-1])
        if size > most:
            raise _too_large(most)
        data = reading.unconsumed_tail
        is_more = len(parts[-1]) == _PART and not reading.eof
        if is_more:
            room.check_memory(size + _PART)  # the next part, and the copy in one piece
    if not reading.eof or reading.unused_data:
        message = f"the body is not one complete stream of {coding}"
        raise HttpError(400, message, code="invalid_encoding", param="content-encoding")
    return b"".join(parts)


def _parsed(data: bytes, room: BodyRoom | None = None) -> Any:
    """Return the value of a JSON text. Raises ValueError, RecursionError and HttpError.

    room: checks the memory for the values; None for a small text.
    The JSON parser holds the GIL except while it calls the functions below, so the number of values
    is limited to bound its time, and long texts as those of images are taken out before.
    """
    long_texts: dict[str, str] = {}
    if room is not None:
        room.check_memory(2 * len(data))  # for the long texts, and for a copy of the others
        data, long_texts = _without_long_texts(data)
        n_values = len(data) - len(data.translate(None, b",:[{"))
        if n_values > _MOST_VALUES:
            message = f"the body has more than {_MOST_VALUES} values: each of ',:[{{' counts as one"
            raise HttpError(413, message, code="body_too_large")
        room.check_memory(len(data) + _BYTES_OF_VALUE * n_values)
    was_enabled = gc.isenabled()
    gc.disable()  # a collection would scan all new objects repeatedly and find none to free
    try:
        if len(data) <= _SMALL and not long_texts:
            return json.loads(data)
        hook = partial(_with_long_texts, long_texts) if long_texts else _same
        return json.loads(data, parse_int=_whole, parse_float=_float, object_hook=hook)
    finally:
        if was_enabled:
            gc.enable()


# Python functions, no types of C: at the call of one, Python lets a thread that waits run.


def _whole(text: str) -> int:
    return int(text)


def _float(text: str) -> float:
    return float(text)


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _without_long_texts(data: bytes) -> tuple[bytes, dict[str, str]]:
    """Return a JSON text with a short name in the place of each long text, and the texts by name.

    Only texts of letters, digits and the other characters of data URIs are replaced. The search for
    quotation marks is as fast as the memory; every long text has one of the windows for itself.
    """
    parts: list[bytes] = []
    texts: dict[str, str] = {}
    tag, done = "", 0
    window = _LONG // 2
    place = 0
    while place + window <= len(data):
        next_quote = data.find(b'"', place, place + window)
        if next_quote >= 0:
            place += window
            continue
        begin, end = data.rfind(b'"', done, place) + 1, data.find(b'"', place + window)
        place = end if end >= 0 else len(data)
        text = _long_text(data, begin, end) if 0 < begin < end else None
        if text is None:
            continue
        tag = tag or secrets.token_hex(16)  # no client can know it
        name = f"{tag}{len(texts)}"
        texts[name] = text
        parts += [data[done:begin], name.encode()]
        done = end
    if not texts:
        return data, texts
    return b"".join([*parts, data[done:]]), texts


def _long_text(data: bytes, begin: int, end: int) -> str | None:
    """Return a text between quotation marks that has characters of data URIs only; None: another.

    It is read a slice at a time, because methods of bytes hold the GIL. A value that begins with a
    letter or digit after a quotation mark is a text. Names of values are left where they are.
    """
    is_name = _NAME_ENDS.match(data, end) is not None
    if is_name or data[begin - 2 : begin - 1] == b"\\" or not data[begin : begin + 1].isalnum():
        return None
    slices: list[str] = []
    for i in range(begin, end, _LONG):
        one = data[i : min(i + _LONG, end)]
        if one.translate(None, _OF_DATA_URIS):
            return None
        slices.append(one.decode("ascii"))
    return "".join(slices)


_NAME_ENDS = re.compile(rb'"[ \t\r\n]*:')
_OF_DATA_URIS = (string.ascii_letters + string.digits + "+/=:;,-.").encode()


def _with_long_texts(texts: Mapping[str, str], value: dict[str, Any]) -> dict[str, Any]:
    """Put long texts in the place of their names, in an object without objects inside lists."""
    for key, one in value.items():
        if type(one) is str:
            if one in texts:
                value[key] = texts[one]
        elif type(one) is list:
            _fill(texts, one)
    return value


def _fill(texts: Mapping[str, str], values: list[Any]) -> None:
    for i, one in enumerate(values):
        if type(one) is str:
            values[i] = texts.get(one, one)
        elif type(one) is list:
            _fill(texts, one)


async def read_bytes(
    headers: Mapping[str, str],
    receive: Receive,
    most: int,
    taken: TakenRoom,
    check: CheckCommas | None = None,
) -> bytes:
    """Return the body of a request. The received bytes are reserved in `taken`.

    check: as in `read_body`. The rest of a refused body is received and dropped, because a client
        reads no answer before it has sent everything.
    Raises HttpError if the body is larger than `most` or finds no room, and ClientGoneError.
    """
    said = headers.get("content-length", "")
    if said.isdecimal() and (len(said) > 20 or int(said) > most):
        raise _too_large(most)
    parts: list[bytes] = []
    size, n_commas, has_more = 0, 0, True
    refused: HttpError | None = None
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _too_large(most)
        has_more = message.get("more_body", False)
        if refused is not None:
            continue
        taken.take(size)
        parts.append(part)
        if check is not None:
            n_commas += part.count(b",")
            try:
                await check(n_commas)
            except HttpError as error:
                refused = error
                parts.clear()
    if refused is not None:
        raise refused
    return b"".join(parts)


async def until_gone(receive: Receive, work: Awaitable[None]) -> None:
    """Run `work` to its end; cancel it if the client disconnects first."""
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(hung_up(receive))
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        listening.cancel()
        working.cancel()
        try:
            with suppress(asyncio.CancelledError, OSError):
                await working
        finally:
            del working  # it has the error, whose frames refer to it: a reference cycle


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body has more than {most} bytes", code="body_too_large")

"""The handler of OpenAI's Responses API."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from ...calls.any_batcher import AnyBatcher
from ...calls.completion import Piece
from ...calls.stream import Stream
from ...errors import PybatcherError
from ...web import unless_gone
from ..base.context import Context
from ..base.event_stream import EventStream, event, steps_of
from ..base.http_error import HttpError, http_error
from ..base.token_texts import TokenTexts
from .chat_completions import template_options
from .responses_api import ResponseAsked, read_response, told_error
from .responses_writer import ResponseWriter

__all__ = ["ROUTES"]

Handler = Callable[[Context, Request], Awaitable[Any]]


async def responses(context: Context, request: Request) -> Any:
    """POST /v1/responses."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    asked = read_response(body)
    del body  # its unknown fields can be large
    asked.names.update(await context.load_images(request, asked.messages))
    try:
        return await _respond(context, request, name, batcher, asked)
    except PybatcherError as error:
        raise told_error(http_error(error), asked.names) from error


async def _respond(
    context: Context, request: Request, name: str, batcher: AnyBatcher, asked: ResponseAsked
) -> Any:
    texts = await context.texts(name, batcher, asked.options)
    stream = batcher.stream_chat(asked.messages, **{**context.options(request), **asked.options})
    writer = ResponseWriter({**_head(name), **asked.told}, texts)
    if asked.stream:
        opening = _joined(writer.begin())
        events = _events(stream, writer, texts)

        def tell(error: HttpError) -> bytes:
            return _joined(writer.fail(told_error(error, asked.names)))

        told = EventStream(events, tell, source=stream, opening=opening)
        return await told.begun(request)
    pieces = await unless_gone(request, _all_of(stream))
    await texts.learn_of(pieces)
    writer.add(pieces)
    assert stream.completion is not None
    response, _ = writer.end(stream.completion, int(time.time()))
    return JSONResponse(response)


async def input_tokens(context: Context, request: Request) -> Any:
    """POST /v1/responses/input_tokens: the number of tokens of a response's prompt."""
    body = await context.body(request)
    _, batcher = context.models.find(body.get("model"))
    asked = read_response(body)
    del body  # a second copy of its images
    asked.names.update(await context.load_images(request, asked.messages))
    try:
        asking = batcher.tokenize(asked.messages, **template_options(asked.options))
        tokens = await unless_gone(request, asking)
    except PybatcherError as error:
        raise told_error(http_error(error), asked.names) from error
    return JSONResponse({"object": "response.input_tokens", "input_tokens": len(tokens)})


def _head(model: str) -> dict[str, Any]:
    """Return the fields that all responses of a model share, and the unique id of one."""
    return {
        "id": f"resp_{secrets.token_hex(12)}",
        "created_at": int(time.time()),
        "model": model,
        "background": False,
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
    }


async def _all_of(stream: Stream) -> list[Piece]:
    async with stream:
        return [piece async for piece in stream]


async def _events(
    stream: Stream, writer: ResponseWriter, texts: TokenTexts
) -> AsyncGenerator[bytes]:
    async with stream, aclosing(steps_of(stream)) as steps:
        async for pieces in steps:
            await texts.learn_of(pieces)
            if events := writer.add(pieces):
                yield _joined(events)
    assert stream.completion is not None
    _, events = writer.end(stream.completion, int(time.time()))
    yield _joined(events)


def _joined(events: list[dict[str, Any]]) -> bytes:
    return b"".join(event(one, one["type"]) for one in events)


ROUTES: list[tuple[str, str, Handler]] = [
    ("/v1/responses", "POST", responses),
    ("/v1/responses/input_tokens", "POST", input_tokens),
]
"""The path, method and handler of each endpoint."""

"""Handlers of Anthropic's endpoints."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ...calls.any_batcher import AnyBatcher
from ...calls.completion import Completion
from ...calls.stream import Stream
from ...errors import InvalidRequestError
from ...web import unless_gone
from ..base.context import Context
from ..base.event_stream import EventStream, event, steps_of
from ..base.field_names import fields_named, renamed
from ..base.http_error import error_body
from .messages_input import MessagesAsked, names_of_tools, read_conversation, read_request
from .messages_output import PING, MessageEvents, message_body, stop_text_of

__all__ = ["ROUTES"]

Handler = Callable[[Context, Request], Awaitable[Any]]
T = TypeVar("T")
_NAMES = {
    "stop": "stop_sequences",
    "json_schema": "output_config.format.schema",
    "max_reasoning_tokens": "thinking.budget_tokens",
}


async def messages(context: Context, request: Request) -> Any:
    """POST /v1/messages."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    asked = read_request(body, request.headers.get("anthropic-beta", ""))
    del body  # its unknown fields can be large
    images = await context.load_images(request, asked.conversation.messages)
    asked.names.update(images)
    with fields_named(lambda: {**_NAMES, **asked.names}):
        return await _answer(context, request, name, batcher, asked, bool(images))


async def _answer(
    context: Context,
    request: Request,
    name: str,
    batcher: AnyBatcher,
    asked: MessagesAsked,
    has_images: bool,
) -> Any:
    options = {**context.options(request), **asked.options}
    told: dict[str, Any] = {"id": f"msg_{secrets.token_hex(12)}", "model": name}
    most = asked.options["max_tokens"]
    if asked.stream:
        conversation, names = asked.conversation, {**_NAMES, **asked.names}
        asking = batcher.tokenize(conversation.messages, **conversation.template)
        tokens = await unless_gone(request, asking)

        async def begin(options: dict[str, Any]) -> EventStream:
            events = MessageEvents(**told, prompt_tokens=len(tokens), eager=asked.eager)
            # Token ids alone do not have the images.
            content: Any = conversation.messages if has_images else tokens
            stream = batcher.stream_chat(content, **options)
            response = EventStream(
                _events(batcher, stream, events, asked),
                lambda error: event(error_body(renamed(error, names), request.scope), "error"),
                source=stream,
                opening=events.opening,
                comment=PING,
            )
            return await response.begun(request)

        return await _budget_or_not(begin, options)

    async def work(options: dict[str, Any]) -> dict[str, Any]:
        made = await batcher.chat(asked.conversation.messages, **options)
        stop_text = await _stop_text(batcher, made, asked.stops)
        return message_body(made, **told, most=most, stop_text=stop_text)

    return _json(await unless_gone(request, _budget_or_not(work, options)))


async def count_tokens(context: Context, request: Request) -> Any:
    """POST /v1/messages/count_tokens."""
    body = await context.body(request)
    _, batcher = context.models.find(body.get("model"))
    asked = read_conversation(body)
    names = names_of_tools(body.get("tools"))
    del body  # a second copy of its images
    names |= await context.load_images(request, asked.messages)
    with fields_named(lambda: names):
        tokens = await unless_gone(request, batcher.tokenize(asked.messages, **asked.template))
    return _json({"input_tokens": len(tokens)})


async def _budget_or_not(
    work: Callable[[dict[str, Any]], Awaitable[T]], options: dict[str, Any]
) -> T:
    """Return the result of `work(options)`.

    This API treats a thinking budget as a wish: if the model's thinking cannot be limited, the
    budget is left out.
    """
    try:
        return await work(options)
    except InvalidRequestError as error:
        if not ("max_reasoning_tokens" in options and "max_reasoning_tokens" in str(error)):
            raise
    return await work({**options, "max_reasoning_tokens": None})


async def _events(
    batcher: AnyBatcher, stream: Stream, events: MessageEvents, asked: MessagesAsked
) -> AsyncGenerator[bytes]:
    async with stream, aclosing(steps_of(stream)) as steps:
        async for pieces in steps:
            yield events.step(pieces)
    made = stream.completion
    assert made is not None
    stop_text = await _stop_text(batcher, made, asked.stops)
    yield events.end(made, most=asked.options["max_tokens"], stop_text=stop_text)


async def _stop_text(batcher: AnyBatcher, made: Completion, stops: tuple[str, ...]) -> str | None:
    """Return the stop sequence that ended an output. None: none of them did."""
    if not stops or made.finish_reason != "stop":
        return None
    return stop_text_of(await batcher.detokenize(made.token_ids), stops)


def _json(body: dict[str, Any]) -> Response:
    # The JSON can contain half of a surrogate pair, which UTF-8 cannot encode.
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "replace"), media_type="application/json")


ROUTES: list[tuple[str, str, Handler]] = [
    ("/v1/messages", "POST", messages),
    ("/v1/messages/count_tokens", "POST", count_tokens),
]
"""The path, method and handler of each endpoint."""

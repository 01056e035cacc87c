"""Handlers of OpenAI's endpoints, and of those that servers of models have beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..calls.completion import Piece
from ..calls.stream import Stream
from .chat_completions import ChatAsked, chat_completion, chunks_of, read_chat, usage_chunk
from .connection import unless_gone
from .context import Context
from .event_stream import DONE, EventStream, event, steps_of
from .token_texts import TokenTexts

__all__ = ["ROUTES"]

Handler = Callable[[Context, Request], Awaitable[Any]]


async def chat_completions(context: Context, request: Request) -> Any:
    """POST /v1/chat/completions."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    asked, texts = read_chat(body), context.texts(name, batcher)
    options = {**context.options(request), **asked.options}
    if not asked.stream:
        made = await unless_gone(request, batcher.chat(asked.messages, **options))
        await texts.learn_of(made)
        head = context.head("chatcmpl", "chat.completion", name)
        told = {key: head[key] for key in ("id", "created", "model")}
        return JSONResponse(chat_completion(made, texts, **told))
    stream = batcher.stream_chat(asked.messages, **options)
    first = await unless_gone(request, anext(stream))
    head = context.head("chatcmpl", "chat.completion.chunk", name)
    return EventStream(_chat_events(stream, first, asked, texts, head))


async def _chat_events(
    stream: Stream, first: Piece, asked: ChatAsked, texts: TokenTexts, head: dict[str, Any]
) -> AsyncIterator[bytes]:
    begun: set[int] = set()
    async with stream, aclosing(steps_of(stream, first)) as steps:  # type: ignore[type-var]
        async for pieces in steps:
            await texts.learn_of(pieces)
            for chunk in chunks_of(pieces, texts, begun, head):
                yield event(chunk)
    made = stream.completion
    if asked.include_usage and made is not None:
        yield event(usage_chunk(made.usage, head))
    yield DONE


async def models(context: Context, request: Request) -> Any:
    """GET /v1/models."""
    return JSONResponse(
        {"object": "list", "data": [_model(context, name) for name in context.models.by_name]}
    )


async def model(context: Context, request: Request) -> Any:
    """GET /v1/models/{id}."""
    name, _ = context.models.find(request.path_params["model"])
    return JSONResponse(_model(context, name))


def _model(context: Context, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": context.began,
        "owned_by": "pybatcher",
        "root": name,
        "parent": None,
    }


async def health(context: Context, request: Request) -> Any:
    """GET /health: 200 where all models are served, else 503."""
    found = {name: await batcher.health() for name, batcher in context.models.by_name.items()}
    ok = all(one.ok for one in found.values())
    body = {"status": "ok" if ok else "unavailable"}
    body |= {"models": {name: asdict(one) for name, one in found.items()}}  # type: ignore[dict-item]
    return JSONResponse(body, 200 if ok else 503)


async def nothing(context: Context, request: Request) -> Any:
    """HEAD /: agents look whether somebody is there."""
    return Response()


ROUTES: list[tuple[str, str, Handler]] = [
    ("/v1/chat/completions", "POST", chat_completions),
    ("/v1/models", "GET", models),
    ("/v1/models/{model:path}", "GET", model),
    ("/health", "GET", health),
    ("/", "HEAD", nothing),
]
"""Path, method and handler of each endpoint."""

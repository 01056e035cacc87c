"""Handlers of OpenAI's endpoints, and of those that servers of models have beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse

from ..calls.any_batcher import AnyBatcher
from ..calls.completion import Piece
from ..calls.stream import Stream
from .chat_completions import ChatAsked, chat_completion, chunks_of, read_chat, usage_chunk
from .completions import (
    CompletionAsked,
    completion_body,
    completion_chunks,
    read_completion,
    usage_of,
)
from .connection import unless_gone
from .context import Context
from .event_stream import DONE, EventStream, event, merged, steps_of
from .token_texts import TokenTexts

__all__ = ["ROUTES"]

T = TypeVar("T")
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
        return JSONResponse(chat_completion(made, texts, head))
    stream = batcher.stream_chat(asked.messages, **options)
    first = await unless_gone(request, anext(stream))
    head = context.head("chatcmpl", "chat.completion.chunk", name)
    return EventStream(_chat_events(stream, first, asked, texts, head))


async def _chat_events(
    stream: Stream, first: Piece, asked: ChatAsked, texts: TokenTexts, head: dict[str, Any]
) -> AsyncGenerator[bytes]:
    begun: set[int] = set()
    async with stream, aclosing(steps_of(stream, first)) as steps:
        async for pieces in steps:
            await texts.learn_of(pieces)
            for chunk in chunks_of(pieces, texts, begun, head):
                yield event(chunk)
    made = stream.completion
    if asked.include_usage and made is not None:
        yield event(usage_chunk(made.usage, head))
    yield DONE


async def completions(context: Context, request: Request) -> Any:
    """POST /v1/completions."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    asked, texts = read_completion(body), context.texts(name, batcher)
    options = {**context.options(request), **asked.options}
    if asked.stream:
        streams = [batcher.stream(prompt, **options) for prompt in asked.prompts]
        firsts = await unless_gone(request, _all(anext(stream) for stream in streams))
        head = context.head("cmpl", "text_completion", name)
        n = options.get("n") or 1
        return EventStream(_completion_events(streams, firsts, asked, n, texts, head))
    wants = asked.echo and "logprobs" in options
    work = batcher.generate(asked.prompts, **options, prompt_logprobs=wants)
    made = await unless_gone(request, work)
    before: list[tuple[str, Sequence[int]] | None] = [None] * len(made)
    if asked.echo:
        before = await _all(_echoed(batcher, prompt) for prompt in asked.prompts)
    if wants:
        await texts.learn(token for one in before if one is not None for token in one[1])
    for one in made:
        await texts.learn_of(one)
    head = context.head("cmpl", "text_completion", name)
    return JSONResponse(completion_body(made, before, texts, head))


async def _echoed(batcher: AnyBatcher, prompt: str | list[int]) -> tuple[str, Sequence[int]]:
    """Return a prompt as text and as token ids."""
    if isinstance(prompt, str):
        return prompt, await batcher.tokenize(prompt)
    return await batcher.detokenize(prompt), prompt


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of all; where one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _completion_events(
    streams: list[Stream],
    firsts: list[Piece],
    asked: CompletionAsked,
    n: int,
    texts: TokenTexts,
    head: dict[str, Any],
) -> AsyncGenerator[bytes]:
    """Return the events of all prompts as they come."""
    offsets: dict[int, int] = {}
    async with (
        AsyncExitStack() as open_streams,
        aclosing(
            merged([steps_of(stream, first) for stream, first in zip(streams, firsts, strict=True)])
        ) as steps,
    ):
        for stream in streams:
            await open_streams.enter_async_context(stream)
        async for i, pieces in steps:
            await texts.learn_of(pieces)
            for chunk in completion_chunks(pieces, i * n, offsets, texts, head):
                yield event(chunk)
    if asked.include_usage:
        made = [stream.completion for stream in streams if stream.completion is not None]
        yield event(usage_chunk(usage_of(made), head))
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


ROUTES: list[tuple[str, str, Handler]] = [
    ("/v1/chat/completions", "POST", chat_completions),
    ("/v1/completions", "POST", completions),
    ("/v1/models", "GET", models),
    ("/v1/models/{model:path}", "GET", model),
    ("/health", "GET", health),
]
"""Path, method and handler of each endpoint."""

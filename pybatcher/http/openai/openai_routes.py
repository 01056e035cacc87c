"""Handlers of OpenAI's completions and chat completions, and of `/health`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse

from ...calls.any_batcher import AnyBatcher
from ...calls.completion import Completion, Piece
from ...calls.stream import Stream
from ...web import unless_gone
from ..base.context import Context
from ..base.event_stream import DONE, EventStream, event, steps_of
from ..base.field_names import fields_named, named_error
from ..base.list_response import list_response
from ..base.token_texts import TokenTexts
from .chat_completions import (
    ChatAsked,
    RunningUsage,
    by_sample,
    choices_of,
    chunks_of,
    joined_logprobs,
    read_chat,
    usage_body,
    usage_chunk,
)
from .completions import (
    CompletionAsked,
    EchoedPrompt,
    completion_choices,
    completion_chunks,
    echo_chunks,
    read_completion,
    told_logprobs,
    usage_of,
)
from .several_streams import steps_of_several
from .text_offsets import TextOffsets, offsets_of

__all__ = ["ROUTES"]

T = TypeVar("T")
Handler = Callable[[Context, Request], Awaitable[Any]]


async def chat_completions(context: Context, request: Request) -> Any:
    """POST /v1/chat/completions."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    asked = read_chat(body)
    del body  # its unknown fields can be large
    asked.names.update(await context.load_images(request, asked.messages))
    with fields_named(lambda: asked.names):
        return await _chat(context, request, name, batcher, asked)


async def _chat(
    context: Context, request: Request, name: str, batcher: AnyBatcher, asked: ChatAsked
) -> Any:
    texts = await context.texts(name, batcher, asked.options)
    texts = texts.named_by_id() if asked.tokens_as_ids else texts
    options = {**context.options(request), **asked.options}
    if not asked.stream:
        made = await unless_gone(request, batcher.chat(asked.messages, **options))
        await texts.learn_of(made)
        head = context.head("chatcmpl", "chat.completion", name)
        n_values = _n_values([made], options)
        whole = {**head, "choices": [], "usage": usage_body(made.usage)}
        return await list_response(whole, "choices", choices_of(made, texts), n_values=n_values)
    n_prompt = None
    if asked.continuous_usage:
        asking = batcher.tokenize(asked.messages, **asked.template_options)
        n_prompt = len(await unless_gone(request, asking))
    stream = batcher.stream_chat(asked.messages, **options)
    head = context.head("chatcmpl", "chat.completion.chunk", name)
    events = _chat_events(
        stream, asked, RunningUsage(n_prompt, is_asked=asked.include_usage), texts, head
    )
    return await EventStream(events, named_error(asked.names), source=stream).begun(request)


async def _chat_events(
    stream: Stream,
    asked: ChatAsked,
    usage: RunningUsage,
    texts: TokenTexts,
    head: dict[str, Any],
) -> AsyncGenerator[bytes]:
    begun: set[int] = set()
    async with stream, aclosing(steps_of(stream)) as steps:
        async for pieces in steps:
            await texts.learn_of(pieces)
            for chunk in usage.told(chunks_of(pieces, texts, begun, head), pieces):
                yield event(chunk)
    made = stream.completion
    if asked.include_usage and made is not None:
        yield event(usage_chunk(made.usage, head))
    yield DONE


async def completions(context: Context, request: Request) -> Any:
    """POST /v1/completions."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    asked = read_completion(body)
    del body  # its unknown fields can be large
    with fields_named(lambda: asked.names):
        return await _complete(context, request, name, batcher, asked)


async def _complete(
    context: Context, request: Request, name: str, batcher: AnyBatcher, asked: CompletionAsked
) -> Any:
    texts = await context.texts(name, batcher, asked.options)
    texts = texts.named_by_id() if asked.tokens_as_ids else texts
    options = {**context.options(request), **asked.options}
    prompts: list[Any] = asked.prompts
    counts = asked.stream and asked.continuous_usage
    if not asked.add_special_tokens or counts or (asked.stream and len(prompts) > 1):
        # An error in any prompt of the list becomes the status, before the stream begins.
        prompts = await unless_gone(request, _all(_ids(batcher, one, asked) for one in prompts))
    scores = asked.prompt_logprobs
    if asked.stream:
        head = context.head("cmpl", "text_completion", name)
        n_prompt = sum(map(len, prompts)) if counts else None
        usage = RunningUsage(n_prompt, is_asked=asked.include_usage)
        made: dict[int, Completion] = {}
        steps = steps_of_several(batcher, prompts if asked.is_drawn else [], options, made)
        echoing = partial(_echoes, batcher, prompts, asked, options, texts, head)
        events = _completion_events(echoing, steps, made, asked, usage, texts, head)
        return await EventStream(events, named_error(asked.names), source=steps).begun(request)
    completed = await unless_gone(
        request, batcher.generate(prompts, **options, prompt_logprobs=scores)
    )
    before: list[EchoedPrompt | None] = [None] * len(completed)
    if asked.echo:
        before = await _all(_echoed(batcher, one, asked) for one in asked.prompts)
    offsets = None
    if "logprobs" in options:
        await texts.learn(token for one in before if one is not None for token in one[1])
        for one in completed:
            await asyncio.sleep(0)
            await texts.learn_of(one)
        offsets = []
        for one, prompt in zip(completed, before, strict=True):
            await asyncio.sleep(0)  # the prompts can be many and long
            is_told = one.prompt_logprobs is not None
            for choice in one.choices:
                drawn = told_logprobs(choice, is_echo=asked.echo)
                offsets += [await offsets_of(texts, drawn, prompt, is_told)]
    head = context.head("cmpl", "text_completion", name)
    whole = {**head, "choices": [], "usage": usage_body(usage_of(completed))}
    choices = completion_choices(completed, before, texts, offsets)
    return await list_response(
        whole, "choices", choices, n_values=_n_values(completed, options, before)
    )


def _n_values(
    made: Sequence[Completion],
    options: Mapping[str, Any],
    before: Sequence[EchoedPrompt | None] = (),
) -> int:
    """Return about the number of values in the response of some completions."""
    n_outputs = sum(len(one.choices) for one in made)
    if "logprobs" not in options:
        return 4 * n_outputs
    n_tokens = sum(len(choice.token_ids) for one in made for choice in one.choices)
    n_tokens += sum(0 if one is None else len(one[1]) for one in before)
    return 4 * n_outputs + n_tokens * (4 + 2 * int(options["logprobs"]))


async def _ids(
    batcher: AnyBatcher, prompt: str | list[int], asked: CompletionAsked
) -> tuple[int, ...]:
    """Return the token ids of a prompt."""
    return await batcher.tokenize(prompt, add_special_tokens=asked.add_special_tokens)


async def _echoes(
    batcher: AnyBatcher,
    prompts: list[Any],
    asked: CompletionAsked,
    options: dict[str, Any],
    texts: TokenTexts,
    head: dict[str, Any],
) -> tuple[list[dict[str, Any]], list[Completion]]:
    """Return the chunks with the prompts, and the echoed prompts: [] if all prompts are texts only.

    The log-probabilities come from requests of their own, which share their KV with the outputs.
    """
    before = await _all(_echoed(batcher, one, asked) for one in asked.prompts)
    scored: list[Completion] = []
    if asked.prompt_logprobs is not None:
        alone = {**options, "prompt_logprobs": asked.prompt_logprobs}
        if asked.is_drawn:
            alone["max_tokens"] = 0
        scored = await batcher.generate(prompts, **alone)
    offsets: list[list[int]] = []
    wants_logprobs = "logprobs" in options
    if wants_logprobs:
        await texts.learn(token for _, tokens in before for token in tokens)
        for one in scored:
            await texts.learn_of(one)
        offsets = [await offsets_of(texts, (), prompt, True) for prompt in before]
    chunks = echo_chunks(
        before,
        scored if wants_logprobs else None,
        (options.get("n") or 1) if asked.is_drawn else 1,
        texts,
        head,
        offsets,
        is_all=not asked.is_drawn,
    )
    return chunks, scored


async def _echoed(
    batcher: AnyBatcher, prompt: str | list[int], asked: CompletionAsked
) -> EchoedPrompt:
    """Return a prompt as text and as token ids."""
    if isinstance(prompt, str):
        return prompt, await _ids(batcher, prompt, asked)
    return await batcher.detokenize(prompt), prompt


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return all results. If one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _completion_events(
    echoing: Callable[[], Awaitable[tuple[list[dict[str, Any]], list[Completion]]]],
    steps: AsyncGenerator[tuple[int, list[Piece]]],
    made: dict[int, Completion],
    asked: CompletionAsked,
    usage: RunningUsage,
    texts: TokenTexts,
    head: dict[str, Any],
) -> AsyncGenerator[bytes]:
    """Yield the events of all prompts as they arrive.

    echoing: returns the chunks that come before all others, and the echoed prompts.
    """
    n = asked.options.get("n") or 1
    echoes: list[dict[str, Any]] = []
    async with aclosing(steps):
        if asked.echo:
            echoes, scored = await echoing()
            if not asked.is_drawn:
                made.update(enumerate(scored))
        choices = [chunk["choices"][0] for chunk in echoes]
        places = {one["index"]: TextOffsets(texts, len(one["text"])) for one in choices}
        step = await anext(steps, None)  # its error comes before all events
        for chunk in usage.told(echoes, ()):
            yield event(chunk)
        while step is not None:
            i, pieces = step
            await texts.learn_of(pieces)
            offsets: dict[int, list[int]] = {}
            for index, own in by_sample(pieces).items():
                drawn = joined_logprobs(own, with_end=asked.echo) or ()
                place = places.setdefault(i * n + index, TextOffsets(texts))
                offsets[i * n + index] = await place.add([one.token_id for one in drawn])
            chunks = completion_chunks(pieces, i * n, offsets, texts, head, is_echo=asked.echo)
            for chunk in usage.told(chunks, pieces):
                yield event(chunk)
            step = await anext(steps, None)
    if asked.include_usage:
        yield event(usage_chunk(usage_of(list(made.values())), head))
    yield DONE


async def health(context: Context, request: Request) -> Any:
    """GET /health: 200 if all models are served, else 503."""
    found = {name: await batcher.health() for name, batcher in context.models.by_name.items()}
    ok = all(one.ok for one in found.values())
    body = {"status": "ok" if ok else "unavailable"}
    body |= {"models": {name: asdict(one) for name, one in found.items()}}  # type: ignore[dict-item]
    return JSONResponse(body, 200 if ok else 503)


ROUTES: list[tuple[str, str, Handler]] = [
    ("/v1/chat/completions", "POST", chat_completions),
    ("/v1/completions", "POST", completions),
    ("/health", "GET", health),
]
"""The path, method and handler of each endpoint."""

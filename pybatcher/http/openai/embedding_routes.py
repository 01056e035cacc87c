"""Handlers of embeddings, scores and reranking."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...calls.any_batcher import AnyBatcher
from ...calls.composed.bounded import map_bounded
from ...calls.scores import Embedding
from ...web import unless_gone
from ..base.context import Context
from ..base.field_names import fields_named, text_names
from ..base.sampling_fields import read_flag
from .embeddings import (
    Texts,
    embeddings_json,
    pairs_body,
    ranked_body,
    read_document_truncation,
    read_embeddings,
    read_pairs,
    read_rank,
    read_truncation,
    similarities,
)

__all__ = ["ROUTES"]

_MOST_IDS = 2**15  # token ids of one call, which are read in some milliseconds
_CALLS_AT_ONCE = 2
_FEW = 4  # vectors that are written on the loop: a large one takes half a millisecond


async def embeddings(context: Context, request: Request) -> Any:
    """POST /v1/embeddings."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    texts, options, as_base64, dimensions = read_embeddings(body)
    options |= context.options(request)
    names = text_names({"input": body["input"]})
    made = await unless_gone(request, _embedded(batcher, texts, names, options))
    write = partial(embeddings_json, made, model=name, as_base64=as_base64, dimensions=dimensions)
    written = write() if len(made) <= _FEW else await asyncio.to_thread(write)
    return Response(written, media_type="application/json")


async def _embedded(
    batcher: AnyBatcher, texts: Texts, names: Mapping[str, str], options: Mapping[str, Any]
) -> list[Embedding]:
    """Embed texts with several calls if they are long lists of token ids.

    Reading and packing the ids of one call takes the event loop, and so delays all streams. names:
    the fields of the request by the texts' names. Raises HttpError.
    """
    groups: list[range] = []
    n_ids = _MOST_IDS + 1
    for i, text in enumerate(texts):
        n_ids += 0 if isinstance(text, str) else len(text)
        if n_ids > _MOST_IDS:
            groups.append(range(i, i))
            n_ids = 0 if isinstance(text, str) else len(text)
        groups[-1] = range(groups[-1].start, i + 1)

    async def embedded(group: range) -> list[Embedding]:
        own = {f"texts[{k}]": names[f"texts[{i}]"] for k, i in enumerate(group)}
        with fields_named(lambda: own):
            return await batcher.embed(texts[group.start : group.stop], **options)

    made = await map_bounded(embedded, groups, _CALLS_AT_ONCE)
    return [one for several in made for one in several]


async def score(context: Context, request: Request) -> Any:
    """POST /v1/score: the cosine similarity of each pair of texts."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    pairs = read_pairs(body)
    first, second = pairs.values()
    options = {**read_truncation(body), **context.options(request)}
    with fields_named(lambda: text_names(pairs)):
        made = await unless_gone(request, batcher.embed([*first, *second], **options))
    scores = similarities(made[: len(first)], made[len(first) :])
    return JSONResponse(pairs_body(scores, made, context.head("score", "list", name)))


async def rerank(context: Context, request: Request) -> Any:
    """POST /v1/rerank: documents ranked by the cosine similarity with the query."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    query, documents, top = read_rank(body)
    with_documents = read_flag(body, "return_documents", True)
    of_query, of_documents = read_truncation(body), read_document_truncation(body)
    options = context.options(request)
    with fields_named(lambda: {"texts[0]": "query"}):
        made = await unless_gone(request, batcher.embed([query], **of_query, **options))
    with fields_named(lambda: text_names({"documents": documents})):
        made += await unless_gone(request, batcher.embed(documents, **of_documents, **options))
    scores = similarities([made[0]] * len(documents), made[1:])
    head = context.head("rerank", "list", name)
    ranked = ranked_body(documents, scores, top, made, head, with_documents=with_documents)
    return JSONResponse(ranked)


ROUTES = [
    ("/v1/embeddings", "POST", embeddings),
    ("/v1/score", "POST", score),
    ("/score", "POST", score),
    ("/v1/rerank", "POST", rerank),
    ("/rerank", "POST", rerank),
    ("/v2/rerank", "POST", rerank),  # the path of Cohere's clients
]
"""The path, method and handler of each endpoint."""

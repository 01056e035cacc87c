"""Handlers of embeddings, scores and reranking."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...web import unless_gone
from ..base.context import Context
from ..base.field_names import fields_named, text_names
from ..base.sampling_fields import read_flag
from .embeddings import (
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

_FEW = 4  # vectors that are written on the loop: a large one takes half a millisecond


async def embeddings(context: Context, request: Request) -> Any:
    """POST /v1/embeddings."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    texts, options, as_base64, dimensions = read_embeddings(body)
    options |= context.options(request)
    with fields_named(lambda: text_names({"input": body["input"]})):
        made = await unless_gone(request, batcher.embed(texts, **options))
    write = partial(embeddings_json, made, model=name, as_base64=as_base64, dimensions=dimensions)
    written = write() if len(made) <= _FEW else await asyncio.to_thread(write)
    return Response(written, media_type="application/json")


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

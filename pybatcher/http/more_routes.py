"""Handlers of embeddings, scores, ranks, tokens and metrics."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .chat_completions import read_chat
from .connection import unless_gone
from .context import Context
from .embeddings import (
    embeddings_body,
    pairs_body,
    ranked_body,
    read_embeddings,
    read_pairs,
    read_rank,
    similarities,
)
from .field_names import fields_named, text_names
from .http_error import HttpError
from .sampling_fields import bad, read_flag

__all__ = ["ROUTES"]


async def embeddings(context: Context, request: Request) -> Any:
    """POST /v1/embeddings."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    texts, options, as_base64, dimensions = read_embeddings(body)
    options |= context.options(request)
    with fields_named(lambda: text_names({"input": body["input"]})):
        made = await unless_gone(request, batcher.embed(texts, **options))
    return JSONResponse(
        embeddings_body(made, model=name, as_base64=as_base64, dimensions=dimensions)
    )


async def score(context: Context, request: Request) -> Any:
    """POST /v1/score: the cosine of the vectors of each pair of texts."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    pairs = read_pairs(body)
    first, second = pairs.values()
    options = context.options(request)
    with fields_named(lambda: text_names(pairs)):
        made = await unless_gone(request, batcher.embed([*first, *second], **options))
    scores = similarities(made[: len(first)], made[len(first) :])
    return JSONResponse(pairs_body(scores, made, context.head("score", "list", name)))


async def rerank(context: Context, request: Request) -> Any:
    """POST /v1/rerank: documents by the cosine of their vectors with the query's."""
    body = await context.body(request)
    name, batcher = context.models.find(body.get("model"))
    query, documents, top = read_rank(body)
    options = context.options(request)
    with fields_named(lambda: text_names({"query": query, "documents": documents})):
        made = await unless_gone(request, batcher.embed([query, *documents], **options))
    scores = similarities([made[0]] * len(documents), made[1:])
    head = context.head("rerank", "list", name)
    return JSONResponse(ranked_body(documents, scores, top, made, head))


async def tokenize(context: Context, request: Request) -> Any:
    """POST /tokenize: of a prompt, or of messages."""
    body = await context.body(request)
    _, batcher = context.models.find(body.get("model"))
    if body.get("messages") is not None:
        asked = read_chat(body)
        with fields_named(lambda: asked.names):
            ids = await batcher.tokenize(asked.messages, **asked.template_options)
    else:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise bad("prompt", prompt, "a text; or give messages")
        with_special = read_flag(body, "add_special_tokens", True)
        with fields_named(lambda: {"content": "prompt"}):
            ids = await batcher.tokenize(prompt, add_special_tokens=with_special)
    told: dict[str, Any] = {"count": len(ids), "tokens": list(ids)}
    return JSONResponse(told)


async def detokenize(context: Context, request: Request) -> Any:
    """POST /detokenize."""
    body = await context.body(request)
    _, batcher = context.models.find(body.get("model"))
    tokens = body.get("tokens")
    if not isinstance(tokens, list):
        raise bad("tokens", tokens, "a list of token ids")
    with fields_named(lambda: {"token_ids": "tokens"}):
        text = await batcher.detokenize(tokens)
    return JSONResponse({"prompt": text})


async def tokenizer_info(context: Context, request: Request) -> Any:
    """GET /tokenizer_info: special tokens and the chat template, as tokenizer_config.json has them.

    Of the first model, or of the one that the query names: ?model=...
    """
    _, batcher = context.models.find(request.query_params.get("model"))
    info = await batcher.model_info()
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": None}
    told |= info.special_tokens
    length = info.max_sequence_length
    return JSONResponse({**told, "model_max_length": length, "chat_template": info.chat_template})


async def metrics(context: Context, request: Request) -> Any:
    """GET /metrics: for Prometheus, of all models."""
    try:
        from .metrics_page import MetricsPage
    except ImportError as error:
        raise HttpError(501, str(error), type="server_error", code="no_metrics") from None
    if context.metrics is None:
        context.metrics = MetricsPage(context.models)
    return Response(await context.metrics.text(), media_type=MetricsPage.content_type)


ROUTES = [
    ("/v1/embeddings", "POST", embeddings),
    ("/v1/score", "POST", score),
    ("/score", "POST", score),
    ("/v1/rerank", "POST", rerank),
    ("/rerank", "POST", rerank),
    ("/v2/rerank", "POST", rerank),  # Cohere's clients ask there
    ("/tokenize", "POST", tokenize),
    ("/detokenize", "POST", detokenize),
    ("/tokenizer_info", "GET", tokenizer_info),
    ("/metrics", "GET", metrics),
]
"""Path, method and handler of each endpoint."""

"""Handlers of the tokenizer: tokenisation, detokenisation and its settings."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...calls.arguments import MOST_IDS
from ..base.context import Context
from ..base.field_names import fields_named
from ..base.http_error import HttpError
from ..base.list_response import list_response, text_json
from ..base.sampling_fields import bad, read_flag
from .chat_completions import read_chat

__all__ = ["ROUTES"]

_SHORT = 2**14  # characters that are written on the loop
_MOST_FIELDS = 64  # commas of a body between other values than token ids


async def tokenize(context: Context, request: Request) -> Any:
    """POST /tokenize: the token ids of a prompt or of messages."""
    body = await context.body(request)
    _, batcher = context.models.find(body.get("model"))
    if body.get("messages") is not None:
        asked = read_chat(body)
        del body  # a second copy of its images
        asked.names.update(await context.load_images(request, asked.messages))
        with fields_named(lambda: asked.names):
            ids = await batcher.tokenize(asked.messages, **asked.template_options)
    else:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise bad("prompt", prompt, "a text; or give messages")
        with_special = read_flag(body, "add_special_tokens", True)
        with fields_named(lambda: {"content": "prompt"}):
            ids = await batcher.tokenize(prompt, add_special_tokens=with_special)
    head: dict[str, Any] = {"count": len(ids), "tokens": []}
    return await list_response(head, "tokens", ids, n_values=len(ids))


async def detokenize(context: Context, request: Request) -> Any:
    """POST /detokenize: the text of token ids."""
    body = await context.body(request, partial(_check_commas, context))
    _, batcher = context.models.find(body.get("model"))
    tokens = body.get("tokens")
    if not isinstance(tokens, list):
        raise bad("tokens", tokens, "a list of token ids")
    with fields_named(lambda: {"token_ids": "tokens"}):
        text = await batcher.detokenize(tokens)
    write = partial(text_json, {"prompt": text})
    written = write() if len(text) <= _SHORT else await asyncio.to_thread(write)
    return Response(written, media_type="application/json")


async def _check_commas(context: Context, n_commas: int) -> None:
    """Refuse more token ids than any model takes. Raises HttpError."""
    most = MOST_IDS
    if n_commas > most + _MOST_FIELDS:
        for batcher in context.models.by_name.values():
            info = await context.model_info(batcher)
            most = max(most, 0 if info is None else info.max_sequence_length)
    if n_commas > most + _MOST_FIELDS:
        raise HttpError(
            400,
            f"tokens has {n_commas - _MOST_FIELDS} token ids or more; one call takes at most "
            f"{most}: divide them among several calls",
            code="context_length_exceeded",
            param="tokens",
        )


async def tokenizer_info(context: Context, request: Request) -> Any:
    """GET /tokenizer_info: special tokens and the chat template, as in tokenizer_config.json.

    The query ?model=NAME chooses a model; without it, the first model answers.
    """
    _, batcher = context.models.find(request.query_params.get("model"))
    info = await batcher.model_info()
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": None}
    told |= info.special_tokens
    length = info.max_sequence_length
    return JSONResponse({**told, "model_max_length": length, "chat_template": info.chat_template})


ROUTES = [
    ("/tokenize", "POST", tokenize),
    ("/detokenize", "POST", detokenize),
    ("/tokenizer_info", "GET", tokenizer_info),
]
"""The path, method and handler of each endpoint."""

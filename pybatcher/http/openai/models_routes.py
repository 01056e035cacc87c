"""Handlers of the list of models, in the forms of OpenAI's and of Anthropic's API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from ...calls.any_batcher import AnyBatcher
from ..base.context import Context
from ..base.http_error import is_anthropic
from ..base.sampling_fields import bad

__all__ = ["ROUTES", "page_of"]

Handler = Callable[[Context, Request], Awaitable[Any]]

_USUAL_LIMIT = 20
_MOST = 1000


async def models(context: Context, request: Request) -> Any:
    """GET /v1/models."""
    by_name = context.models.by_name
    if is_anthropic(request.scope):
        names, has_more = page_of(list(by_name), request.query_params)
        told = {
            "data": [await _for_anthropic(context, name, by_name[name]) for name in names],
            "has_more": has_more,
            "first_id": names[0] if names else None,
            "last_id": names[-1] if names else None,
        }
        return JSONResponse(told)
    data = [await _for_openai(context, *one) for one in by_name.items()]
    return JSONResponse({"object": "list", "data": data})


async def model(context: Context, request: Request) -> Any:
    """GET /v1/models/{id}."""
    found = context.models.find(request.path_params["model"])
    describe = _for_anthropic if is_anthropic(request.scope) else _for_openai
    return JSONResponse(await describe(context, *found))


def page_of(names: list[str], query: Mapping[str, str]) -> tuple[list[str], bool]:
    """Return a page of names, as Anthropic's API divides lists, and whether more follow it.

    query: `limit`, and `after_id` or `before_id`, which are names. With `before_id`, the page has
        the last names before it, and more are those before the page. Raises HttpError.
    """
    given = query.get("limit", str(_USUAL_LIMIT))
    if not (given.isascii() and given.isdecimal() and len(given) < 5 and 1 <= int(given) <= _MOST):
        raise bad("limit", given, f"a whole number from 1 to {_MOST}")
    limit = int(given)
    for field in ("after_id", "before_id"):
        if field in query and query[field] not in names:
            raise bad(field, query[field], "the id of a model")
    if "after_id" in query:
        names = names[names.index(query["after_id"]) + 1 :]
    if "before_id" in query:
        names = names[: names.index(query["before_id"])]
        return names[-limit:], len(names) > limit
    return names[:limit], len(names) > limit


async def _for_openai(context: Context, name: str, batcher: AnyBatcher) -> dict[str, Any]:
    info = await context.model_info(batcher)
    return {
        "id": name,
        "object": "model",
        "created": context.began,
        "owned_by": "pybatcher",
        "root": name,
        "parent": None,
        "max_model_len": None if info is None else info.max_sequence_length,
        "takes_tools": None if info is None else info.takes_tools,
        "takes_thinking": None if info is None else info.takes_thinking,
        "takes_images": None if info is None else info.takes_images,
    }


async def _for_anthropic(context: Context, name: str, batcher: AnyBatcher) -> dict[str, Any]:
    began = datetime.fromtimestamp(context.began, UTC)
    info = await context.model_info(batcher)
    n_positions = None if info is None else info.max_sequence_length
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": began.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": n_positions,
        "max_tokens": n_positions,
    }


ROUTES: list[tuple[str, str, Handler]] = [
    ("/v1/models", "GET", models),
    ("/v1/models/{model:path}", "GET", model),
]
"""The path, method and handler of each endpoint."""

"""`application`: the ASGI application, its routes, and the handling of errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..calls.any_batcher import AnyBatcher
from ..errors import ConfigError, PybatcherError
from ..web import ClientGoneError
from .anthropic import messages_routes
from .base.body_room import BodyRoom
from .base.context import Context
from .base.http_error import HttpError, http_error, internal_error, refusal
from .base.image_hosts import ImageHosts
from .base.model_list import ModelList
from .middleware.access_log import AccessLog
from .middleware.api_keys import ApiKeys
from .middleware.guard import Guard
from .middleware.idempotency import Idempotency
from .middleware.origins import AllowedOrigins, Origins
from .openai import (
    embedding_routes,
    models_routes,
    openai_routes,
    responses_routes,
    tokenizer_routes,
)
from .page import page_routes
from .watch import watch_routes
from .watch.live_feed import LiveFeeds

__all__ = ["application"]

ROUTES = [
    *openai_routes.ROUTES,
    *models_routes.ROUTES,
    *embedding_routes.ROUTES,
    *tokenizer_routes.ROUTES,
    *responses_routes.ROUTES,
    *messages_routes.ROUTES,
    *page_routes.ROUTES,
    *watch_routes.ROUTES,
]

_BODIES_AT_ONCE = 4  # bodies of the largest size

_LOGGER = logging.getLogger("pybatcher.http")

Handler = Callable[[Context, Request], Awaitable[Any]]


def application(
    batcher: AnyBatcher | Mapping[str, AnyBatcher],
    *,
    api_keys: Collection[str] | ApiKeys | None = None,
    max_body: int = 32 * 2**20,
    allow_origins: Collection[str] | AllowedOrigins = (),
    allow_hosts: Collection[str] = (),
    allow_image_hosts: Collection[str] = (),
) -> Starlette:
    """Return an ASGI application that serves batchers with OpenAI's and Anthropic's APIs.

    The application runs on the event loop of the batchers. The caller starts and closes the
    batchers. The application can be mounted below any path. `state.watchers.send_away()`
    disconnects the clients of the live view, so that a server can stop without waiting for them.
    The logger "pybatcher.access" gets a line for each request, with the level INFO.

    batcher: a `Batcher` of this process or a `Client` of a sidecar, or several by the model names
        of requests.
    api_keys: the accepted keys, as a Bearer token or in x-api-key. Each key is a namespace of its
        own in the prefix cache. None: no key is needed. The keys of an `ApiKeys` can be replaced
        later.
    max_body: the most bytes of a request's body. The parts beyond 64 KiB of all bodies in transfer
        can have four times as many bytes together.
    allow_origins: the origins of browser pages that may send requests, as https://host:port, in
        addition to the server's own origin. "*": every origin. The origins of an `AllowedOrigins`
        can be replaced later.
    allow_hosts: names by which requests can call a server on loopback, in addition to localhost,
        addresses and the hosts of allow_origins. "*": every name. Not given together with an
        `AllowedOrigins`, which has both.
    allow_image_hosts: full names of the hosts that images of requests may be fetched from, over
        https. None: no image is fetched.

    Raises ConfigError.
    """
    if not isinstance(allow_origins, AllowedOrigins):
        allow_origins = AllowedOrigins(allow_origins, allow_hosts)
    elif allow_hosts:
        raise ConfigError(
            "allow_hosts is given, and allow_origins is an AllowedOrigins: it has both"
        )
    room = BodyRoom(_BODIES_AT_ONCE * max_body)
    image_hosts = ImageHosts(allow_image_hosts, most=max_body)
    context = Context(ModelList(batcher), max_body, room, image_hosts)
    routes = [
        Route(path, _endpoint(context, handler), methods=[method])
        for path, method, handler in ROUTES
    ]
    made = Starlette(
        routes=routes,
        middleware=[
            Middleware(AccessLog),
            Middleware(Origins, allowed=allow_origins),
            Middleware(Guard, api_keys=api_keys),
            Middleware(Idempotency, max_body=max_body, room=room),
        ],
        exception_handlers={404: _not_found, 405: _wrong_method},
    )
    made.state.watchers = context.shared(LiveFeeds).watchers
    return made


def _endpoint(context: Context, handler: Handler) -> Callable[[Request], Awaitable[Any]]:
    feeds = context.shared(LiveFeeds)

    async def endpoint(request: Request) -> Any:
        feeds.begin()
        try:
            return await handler(context, request)
        except PybatcherError as error:
            return refusal(http_error(error), request.scope)
        except HttpError as error:
            return refusal(error, request.scope)
        except ClientGoneError:
            return Response(status_code=499)
        except Exception as error:
            _LOGGER.exception("a request failed")
            return refusal(internal_error(error), request.scope)

    return endpoint


async def _not_found(request: Request, _: Exception) -> Response:
    path = request.url.path
    error = HttpError(404, f"there is nothing at {path}", code="unknown_url")
    return refusal(error, request.scope)


async def _wrong_method(request: Request, error: Any) -> Response:
    message = f"{request.url.path} has no method {request.method}"
    # The error has the header `allow`.
    told = HttpError(405, message, code="method_not_allowed", headers=error.headers)
    return refusal(told, request.scope)

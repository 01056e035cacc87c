"""`Context`: what the handlers of an application share."""

from __future__ import annotations

import secrets
import time
from typing import Any

from starlette.requests import Request

from ..calls.any_batcher import AnyBatcher
from ..calls.trace_headers import current_trace_headers, headers_of_trace
from .connection import read_body
from .live_feed import LiveFeed, Watchers
from .model_list import ModelList
from .sampling_fields import bad
from .token_texts import TokenTexts

__all__ = ["Context"]


class Context:
    """The models, the limits, and the texts of their tokens.

    max_body: most bytes of a request's body.
    """

    def __init__(self, models: ModelList, max_body: int) -> None:
        self.models = models
        self.max_body = max_body
        self._texts: dict[str, TokenTexts] = {}
        self._feeds: dict[str, LiveFeed] = {}
        self.began = int(time.time())
        self.watchers = Watchers()
        self.metrics: Any = None  # a `MetricsPage`, once somebody has asked

    async def body(self, request: Request) -> dict[str, Any]:
        """Return the body of a request. Raises HttpError, ClientGoneError."""
        return await read_body(request, self.max_body)

    def texts(self, name: str, batcher: AnyBatcher) -> TokenTexts:
        """Return the texts of a model's tokens."""
        if name not in self._texts:
            self._texts[name] = TokenTexts(batcher)
        return self._texts[name]

    def feed(self, name: str, batcher: AnyBatcher) -> LiveFeed:
        """Return what tells of a model's batcher to those who watch it."""
        feed = self._feeds.get(name)
        if feed is None or feed.batcher is not batcher:
            feed = self._feeds[name] = LiveFeed(name, batcher)
        return feed

    def options(self, request: Request) -> dict[str, Any]:
        """Return the keywords that the head of a request gives to its calls."""
        options: dict[str, Any] = {}
        if (namespace := request.scope.get("pybatcher.namespace")) is not None:
            options["namespace"] = namespace
        if current_trace_headers() is None and (trace := headers_of_trace(request.headers)):
            options["trace_headers"] = trace
        if (priority := request.headers.get("x-priority")) is not None:
            try:
                options["priority"] = int(priority)
            except ValueError:
                raise bad("x-priority", priority, "a whole number") from None
        return options

    @staticmethod
    def head(prefix: str, kind: str, model: str) -> dict[str, Any]:
        """Return what the body of a response begins with, and all chunks of a stream have."""
        made = f"{prefix}-{secrets.token_hex(12)}"
        return {"id": made, "object": kind, "created": int(time.time()), "model": model}

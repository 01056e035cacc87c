"""Handlers of the live view's feed and of the metrics."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..base.context import Context
from ..base.event_stream import EventStream, event
from ..base.http_error import HttpError
from .live_feed import LiveFeeds, Watchers

__all__ = ["ROUTES"]


async def live(context: Context, request: Request) -> Any:
    """GET /live: the frames of the live view as events.

    The query ?model=NAME chooses a model, and &after=SERIAL continues after a frame.
    """
    asked = request.query_params
    name, batcher = context.models.find(asked.get("model"))
    after = asked.get("after", "")
    feeds = context.shared(LiveFeeds)
    feeds.watchers.check()
    if request.method == "HEAD":
        return Response()
    frames = feeds.of(name, batcher).frames(
        request.scope.get("pybatcher.namespace"),
        feeds.watchers.ended,
        int(after) if after.isascii() and after.isdecimal() and len(after) < 16 else None,
    )
    return EventStream(_events(frames, feeds.watchers), source=frames)


async def _events(
    frames: AsyncGenerator[dict[str, Any]], watchers: Watchers
) -> AsyncGenerator[bytes]:
    with watchers.one_more():
        async with aclosing(frames):
            async for frame in frames:
                yield event(frame)


async def metrics(context: Context, request: Request) -> Any:
    """GET /metrics: the metrics of all models, in the text format of Prometheus."""
    try:
        from .metrics_page import MetricsPage
    except ImportError as error:
        raise HttpError(501, str(error), type="server_error", code="no_metrics") from None
    page = context.shared(MetricsPage)
    return Response(await page.text(), media_type=MetricsPage.content_type)


ROUTES = [
    ("/live", "GET", live),
    ("/metrics", "GET", metrics),
]
"""The path, method and handler of each endpoint."""

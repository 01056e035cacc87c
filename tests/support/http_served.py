"""An application behind a real server on a port of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

__all__ = ["served"]


@asynccontextmanager
async def served(app: Any, **options: Any) -> AsyncIterator[str]:
    """Serve an application on this loop; gives its URL, without a slash at the end."""
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", **options)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task

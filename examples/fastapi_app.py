"""An HTTP service with the model inside its own process: FastAPI over one `Batcher`.

    pip install fastapi uvicorn
    uvicorn --app-dir examples fastapi_app:app
    curl -N localhost:8000/stream --json '{"prompt": "Once upon a time", "max_tokens": 64}'

All requests share the batch. Who hangs up costs nothing more: the request is cancelled. To have
several processes (`--workers`) share one model, put a `pybatcher.Client` where the Batcher is.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

import pybatcher

T = TypeVar("T")

# The status that an error's type stands for; of all others it is 503.
STATUS: dict[type[pybatcher.PybatcherError], int] = {
    pybatcher.InvalidRequestError: 422,
    pybatcher.QueueFullError: 429,
    pybatcher.DeadlineExceededError: 504,
}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The batcher lives as long as the app; what is in flight at the end is finished."""
    async with pybatcher.Batcher(os.environ.get("MODEL")) as batcher:
        app.state.batcher = batcher
        yield


app = FastAPI(title="pybatcher", lifespan=lifespan)


def the_batcher(request: Request) -> pybatcher.Batcher:
    """For endpoints to depend on."""
    batcher: pybatcher.Batcher = request.app.state.batcher
    return batcher


OneBatcher = Annotated[pybatcher.Batcher, Depends(the_batcher)]


class Asked(BaseModel, extra="allow"):
    """The body of a request: any argument of `Batcher.generate`, by its name.

    What is wrong with their values, or their names, the batcher says.
    """

    prompt: str

    def arguments(self) -> dict[str, Any]:
        """Of `Batcher.generate` and `Batcher.stream`."""
        return self.model_dump()


@app.exception_handler(pybatcher.PybatcherError)
async def refuse(request: Request, error: pybatcher.PybatcherError) -> JSONResponse:
    """Typed errors become statuses, with a word on when to come back."""
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 503)
    headers = {}
    if isinstance(error, pybatcher.QueueFullError):
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    return JSONResponse({"error": str(error)}, status, headers)


@app.post("/generate")
async def generate(asked: Asked, request: Request, batcher: OneBatcher) -> dict[str, Any]:
    """The whole answer."""
    completion = await unless_gone(request, batcher.generate(**asked.arguments()))
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "usage": asdict(completion.usage),
    }


@app.post("/stream")
async def stream(asked: Asked, request: Request, batcher: OneBatcher) -> StreamingResponse:
    """The answer as it comes, as plain text."""
    pieces = batcher.stream(**asked.arguments())
    # The status goes out first: so a request that is refused has to be found out before it.
    first = await unless_gone(request, anext(pieces))

    async def texts() -> AsyncIterator[str]:
        async with pieces:
            yield first.text
            async for piece in pieces:
                yield piece.text

    return StreamingResponse(texts(), media_type="text/plain; charset=utf-8")


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What the work gives. It is cancelled where the client hangs up before.

    A streaming response sees to that by itself, as soon as it is under way.
    """
    working = asyncio.ensure_future(work)
    hung_up = asyncio.ensure_future(request.receive())  # the body was read: nothing else comes
    try:
        await asyncio.wait({working, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(499, "the client has hung up")
        return working.result()
    finally:
        working.cancel()
        hung_up.cancel()


@app.get("/health")
async def health(batcher: OneBatcher) -> JSONResponse:
    """For a load balancer."""
    found = batcher.health()
    return JSONResponse(asdict(found), 200 if found.ok else 503)


@app.get("/statistics")
async def statistics(batcher: OneBatcher) -> dict[str, int]:
    """Counts since the start."""
    return asdict(batcher.statistics())

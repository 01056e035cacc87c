"""An HTTP service with the model inside its own process: FastAPI over one `Batcher`.

    pip install fastapi uvicorn
    uvicorn --app-dir examples fastapi_app:app
    curl -N localhost:8000/stream --json '{"prompt": "Once upon a time", "max_tokens": 64}'

All requests share the batch. A request is cancelled when its client disconnects. To have
several processes (`--workers`) share one model, put a `pybatcher.Client` where the Batcher is.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

import pybatcher
from pybatcher.web import ClientGoneError, http_headers, http_status, text_stream, unless_gone


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
@app.exception_handler(ClientGoneError)
async def refuse(request: Request, error: Exception) -> JSONResponse:
    """Typed errors become statuses, with the time of a retry."""
    return JSONResponse({"error": str(error)}, http_status(error), http_headers(error))


@app.post("/generate")
async def generate(asked: Asked, request: Request, batcher: OneBatcher) -> dict[str, Any]:
    """The whole answer: text, token ids, finish_reason, usage and times."""
    completion = await unless_gone(request, batcher.generate(**asked.arguments()))
    return completion.to_dict()


@app.post("/stream")
async def stream(asked: Asked, request: Request, batcher: OneBatcher) -> StreamingResponse:
    """The answer as it comes, as plain text. Errors before its first piece have a status."""
    texts = await unless_gone(request, text_stream(batcher.stream(**asked.arguments())))
    return StreamingResponse(texts, media_type="text/plain; charset=utf-8")


@app.get("/health")
async def health(batcher: OneBatcher) -> JSONResponse:
    """For a load balancer."""
    found = batcher.health()
    return JSONResponse(asdict(found), 200 if found.ok else 503)


@app.get("/statistics")
async def statistics(batcher: OneBatcher) -> dict[str, int]:
    """Counts since the start."""
    return asdict(batcher.statistics())

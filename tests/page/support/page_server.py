"""The page before a server that answers chats as a test wants it, on a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from http_served import served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from pybatcher.http import application
from pybatcher.testing import fake_batcher

__all__ = ["Script", "ServePage", "chunk", "page_served"]

Chunk = Mapping[str, Any]
ServePage = Callable[..., str]  # `page_served`, until the test has ended


def chunk(content: str = "", index: int = 0, reason: str | None = None, **delta: Any) -> Chunk:
    """Return a chunk of a stream."""
    told = {"content": content, **delta} if content else delta
    choice = {"index": index, "delta": told, "logprobs": None, "finish_reason": reason}
    return {"choices": [choice]}


class Script:
    """What the next chats are answered with.

    answers: a list of chunks each, the last one for all that come after it.
    status: where it is not 200, the status of a refusal with `message`.
    pause: seconds between two chunks. n_left: streams that their reader has left.
    hold_at: the chunk that comes only after `go_on` was set.
    """

    def __init__(self, *answers: Sequence[Chunk]) -> None:
        self.answers = list(answers)
        self.status, self.message = 200, ""
        self.pause = 0.0
        self.n_left = 0
        self.n_asked = 0
        self.is_cut = False
        self.hold_at = -1
        self.go_on = threading.Event()

    async def respond(self, request: Request) -> Response:
        await request.body()
        self.n_asked += 1
        if self.status != 200:
            return JSONResponse({"error": {"message": self.message}}, self.status)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return StreamingResponse(self._events(answer), media_type="text/event-stream")

    async def _events(self, answer: Sequence[Chunk]) -> AsyncIterator[str]:
        try:
            for i, one in enumerate(answer):
                while i == self.hold_at and not self.go_on.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                yield f"data: {json.dumps(one)}\n\n"
                await asyncio.sleep(self.pause)
            if not self.is_cut:
                yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.n_left += 1
            raise


@contextmanager
def page_served(
    script: Script | None = None,
    *,
    below: str = "",
    names: Sequence[str] = ("m",),
    api_keys: Sequence[str] | None = None,
    takes_images: bool = False,
) -> Iterator[str]:
    """Serve the page, and chats by the script, if there is one; gives its URL.

    below: the path of the whole application. names: of its models, all of them fakes.
    takes_images: whether the list of models says so of each.
    """
    found: list[str] = []
    began = threading.Event()
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(ended.set))
        async with fake_batcher() as batcher:
            app = application(dict.fromkeys(names, batcher), api_keys=api_keys)
            routes: list[Any] = []
            if takes_images:
                told = {"data": [{"id": name, "takes_images": True} for name in names]}
                routes.append(Route(f"{below}/v1/models", lambda _: JSONResponse(told)))
            routes.append(Mount(below, app))
            if script is not None:
                path = f"{below}/v1/chat/completions"
                routes.insert(0, Route(path, script.respond, methods=["POST"]))
            async with served(Starlette(routes=routes)) as url:
                found.append(f"{url}{below}/")
                began.set()
                await ended.wait()
                app.state.watchers.send_away()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert began.wait(30)
    try:
        yield found[0]
    finally:
        stop[0]()
        thread.join(30)
        assert not thread.is_alive()

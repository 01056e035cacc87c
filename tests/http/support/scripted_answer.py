"""An ASGI application that sends what a test tells it to."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["START", "Answer", "part", "settled"]

START = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}


def part(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


class Answer:
    """An application that sends what it is told to."""

    def __init__(self) -> None:
        self.body = b""
        self.told: asyncio.Queue[Any] = asyncio.Queue()
        self.n_sent = 0
        self.was_left = False

    async def __call__(self, receive: Any, send: Any) -> None:
        self.body = (await receive())["body"]
        listening = asyncio.ensure_future(receive())
        while True:
            telling = asyncio.ensure_future(self.told.get())
            await asyncio.wait({telling, listening}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                telling.cancel()
                self.was_left = listening.result() == {"type": "http.disconnect"}
                return
            if (message := telling.result()) is None:
                listening.cancel()
                return
            if isinstance(message, Exception):
                raise message
            await send(message)
            self.n_sent += 1

    def tell(self, *messages: Any) -> None:
        for message in messages:
            self.told.put_nowait(message)


async def settled() -> None:
    """Let all tasks go on as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)

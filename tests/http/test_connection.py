from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from pybatcher.http.connection import ClientGoneError, read_body, unless_gone
from pybatcher.http.http_error import HttpError


def request(*messages: Any, **headers: str) -> Request:
    """A request that says this, and nothing after it."""
    waiting = list(messages)

    async def receive() -> Any:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": named}, receive)


def part(data: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


GONE = {"type": "http.disconnect"}


async def test_a_body_is_an_object_within_its_limit() -> None:
    assert await read_body(request(part(b'{"a":', True), part(b" 1}")), 20) == {"a": 1}
    for data, status in ((b"[]", 400), (b"{", 400), (b"x" * 30, 413)):
        with pytest.raises(HttpError) as raised:
            await read_body(request(part(data)), 20)
        assert raised.value.status == status
    with pytest.raises(HttpError) as raised:  # before anything of it is read
        await read_body(request(content_length="21"), 20)
    assert raised.value.status == 413
    with pytest.raises(ClientGoneError):
        await read_body(request(part(b"{", True), GONE), 20)


async def test_work_ends_with_its_client() -> None:
    done = await unless_gone(request(), asyncio.sleep(0, "done"))
    assert done == "done"
    working = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(ClientGoneError):
        await unless_gone(request(part(b""), GONE), working)
    await asyncio.sleep(0)
    assert working.cancelled()
    with pytest.raises(ValueError, match="own"):
        await unless_gone(request(), failing())


async def failing() -> None:
    raise ValueError("its own")

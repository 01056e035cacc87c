"""Room for the bodies of all requests together, of which each has a little for nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from pybatcher.http import application
from pybatcher.http.base.body_room import BodyRoom
from pybatcher.http.base.http_error import HttpError
from pybatcher.testing import fake_batcher

FREE = 2**16


def test_what_a_body_has_beyond_the_free_bytes_is_taken_and_given_back() -> None:
    room = BodyRoom(100)
    with room.one() as one, room.one() as other:
        one.take(FREE)
        assert room.n_taken == 0
        one.take(FREE + 60)
        other.take(FREE + 40)
        assert room.n_taken == 100
        with pytest.raises(HttpError, match="more than 100 bytes together") as raised:
            other.take(FREE + 41)
        assert (raised.value.status, raised.value.code) == (503, "overloaded")
        assert room.n_taken == 100
    assert room.n_taken == 0


class HalfSent:
    """A request of which a part has come, and nothing after it until the client goes."""

    def __init__(self, app: Any, part: bytes, **headers: str) -> None:
        self._parts = [{"type": "http.request", "body": part, "more_body": True}]
        self.is_read, self.goes = asyncio.Event(), asyncio.Event()
        named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b""}
        self.answered = asyncio.ensure_future(app({**scope, "headers": named}, self._more, drop))

    async def _more(self) -> Any:
        if self._parts:
            return self._parts.pop()
        self.is_read.set()
        await self.goes.wait()
        return {"type": "http.disconnect"}


async def drop(message: Any) -> None:
    """Send nothing."""


async def test_who_sends_large_bodies_and_never_ends_them_leaves_small_requests_alone() -> None:
    most = 2**18
    small = {"prompt": "Hi", "max_tokens": 1}
    large = {**small, "user": "x" * (most - 100)}
    async with fake_batcher() as batcher:
        app: Any = application(batcher, max_body=most)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            held = [HalfSent(app, b" " * (most - 1)) for _ in range(2)]
            held += [HalfSent(app, b" " * (most - 1), idempotency_key=f"{i}") for i in range(3)]
            for one in held:
                await one.is_read.wait()
            found = await http.post("/v1/completions", json=large)
            assert (found.status_code, found.headers["retry-after"]) == (503, "1")
            assert found.json()["error"]["code"] == "overloaded"
            keyed = {"idempotency-key": "a"}
            found = await http.post("/v1/completions", json=large, headers=keyed)
            assert found.status_code == 503
            assert (await http.post("/v1/completions", json=small)).status_code == 200
            for one in held:
                one.goes.set()
                await one.answered
            for headers in ({}, keyed):
                found = await http.post("/v1/completions", json=large, headers=headers)
                assert found.status_code == 200

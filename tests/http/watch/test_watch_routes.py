"""Clients read the live feed: its events, the requests that it shows, the end of a feed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from http_served import served

from pybatcher import Batcher
from pybatcher.http import application
from pybatcher.testing import fake_batcher


@pytest.fixture
async def batcher() -> AsyncIterator[Batcher]:
    async with fake_batcher() as one:
        yield one


@pytest.fixture
async def plain(batcher: Batcher) -> AsyncIterator[httpx.AsyncClient]:
    async with served(application(batcher)) as url, httpx.AsyncClient(base_url=url) as http:
        yield http


@pytest.fixture
async def guarded(batcher: Batcher) -> AsyncIterator[httpx.AsyncClient]:
    app = application(batcher, api_keys=["one", "two"])
    async with served(app) as url, httpx.AsyncClient(base_url=url) as http:
        yield http


async def frames(
    http: httpx.AsyncClient, wanted: int = 1, key: str = "", query: str = ""
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with http.stream("GET", f"/live{query}", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
                if len(found) == wanted:
                    break
    return found


async def test_frames_come_as_events(plain: httpx.AsyncClient, batcher: Batcher) -> None:
    await plain.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 3})
    one, another = await frames(plain, 2)
    assert one["model"] == batcher.model_name
    assert one["health"]["status"] == "ready"
    assert one["counts"]["completed"] == 1
    assert another["time"] > one["time"]
    assert not batcher.statistics().running


async def test_a_model_that_is_not_there(plain: httpx.AsyncClient) -> None:
    assert (await plain.get("/live?model=none")).status_code == 404
    assert (await plain.head("/live")).status_code == 200
    assert len(await frames(plain, query="?after=x")) == 1


async def test_requests_of_other_keys_are_not_told(guarded: httpx.AsyncClient) -> None:
    told = {}
    async with guarded.stream("GET", "/live", headers={"x-api-key": "one"}) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        serial = 0
        for key in ("one", "two"):
            body = {"prompt": "Hi", "max_tokens": 2}
            await guarded.post("/v1/completions", json=body, headers={"x-api-key": key})
        for key in ("one", "two"):
            (frame,) = await frames(guarded, key=key, query=f"?after={serial}")
            told[key] = [one["id"] for one in frame["ended"]]
            assert frame["counts"]["completed"] == 2
            assert "namespace" not in str(frame)
            assert "key-" not in str(frame)
    assert len(told["one"]) == len(told["two"]) == 1
    assert told["one"] != told["two"]


async def test_watchers_are_sent_away(batcher: Batcher) -> None:
    app = application(batcher)
    async with served(app) as url, httpx.AsyncClient(base_url=url) as http:
        async with http.stream("GET", "/live") as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            assert app.state.watchers.n_watching == 1
            app.state.watchers.send_away()
            assert [
                line async for line in lines if line.startswith("data: {") and "err" in line
            ] == []
        assert app.state.watchers.n_watching == 0

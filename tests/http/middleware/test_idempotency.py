"""Requests with an idempotency key, as SDKs send them again: nothing is generated twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from http_served import served

from pybatcher import Batcher
from pybatcher.http.application import application
from pybatcher.testing import FakeEngine, fake_batcher

BODY = {"prompt": "Once", "max_tokens": 40, "ignore_eos": True, "seed": 3}
KEY = {"idempotency-key": '"a-1"'}


@pytest.fixture
async def batcher() -> AsyncIterator[Batcher]:
    async with fake_batcher(FakeEngine(step_delay=0.01)) as one:
        yield one


@pytest.fixture
async def http(batcher: Batcher) -> AsyncIterator[httpx.AsyncClient]:
    app = application(batcher, api_keys=["one", "two"], max_body=2**16)
    async with served(app) as url:
        key = {"authorization": "Bearer one"}
        async with httpx.AsyncClient(base_url=url, timeout=60, headers=key) as client:
            yield client


async def ask(http: httpx.AsyncClient, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await http.post("/v1/completions", json=BODY, headers={**KEY, **named})


def n_requests(batcher: Batcher) -> int:
    return batcher.statistics().submitted


@pytest.mark.slow
async def test_the_same_request_is_answered_once(http: httpx.AsyncClient, batcher: Batcher) -> None:
    first, second = await asyncio.gather(ask(http), ask(http))
    third = await ask(http)
    assert first.content == second.content == third.content
    assert third.json()["usage"]["completion_tokens"] == 40
    replayed = [one.headers.get("idempotent-replayed") for one in (first, second, third)]
    assert sorted(replayed, key=str) == [None, "true", "true"]
    assert third.headers["idempotent-replayed"] == "true"
    ids = [one.headers.get_list("x-request-id") for one in (first, second, third)]
    assert [len(one) for one in ids] == [1, 1, 1]
    assert n_requests(batcher) == 1
    other = await http.post("/v1/completions", json={**BODY, "max_tokens": 3}, headers=KEY)
    assert (other.status_code, other.json()["error"]["param"]) == (422, "idempotency-key")
    elsewhere = await http.post("/v1/chat/completions", json=BODY, headers=KEY)
    assert elsewhere.status_code == 422
    assert n_requests(batcher) == 1
    assert (await ask(http, authorization="Bearer two")).status_code == 200  # another one's key
    assert n_requests(batcher) == 2
    assert (await ask(http, idempotency_key="a b")).status_code == 400
    assert (await ask(http, idempotency_key="a-2")).status_code == 200
    assert n_requests(batcher) == 3


async def test_a_stream_begins_again_and_goes_on(http: httpx.AsyncClient, batcher: Batcher) -> None:
    asked: dict[str, Any] = {"json": {**BODY, "stream": True}, "headers": KEY}
    async with http.stream("POST", "/v1/completions", **asked) as cut:
        lines = cut.aiter_lines()
        begun = [await anext(lines) for _ in range(8)]
    assert batcher.statistics().running == 1  # its client has gone, and may come again
    async with http.stream("POST", "/v1/completions", **asked) as again:
        assert again.headers["idempotent-replayed"] == "true"
        found = [line async for line in again.aiter_lines()]
    assert found[:8] == begun
    assert found[-2] == "data: [DONE]"
    assert n_requests(batcher) == 1
    assert batcher.statistics().completed == 1


async def test_who_is_refused_may_ask_again(http: httpx.AsyncClient, batcher: Batcher) -> None:
    body = {**BODY, "temperature": -1}
    for _ in range(2):
        found = await http.post("/v1/completions", json=body, headers=KEY)
        assert found.status_code == 400
        assert "idempotent-replayed" not in found.headers
    assert (await ask(http)).status_code == 200
    large = await http.post("/v1/completions", content=b"x" * 70_000, headers=KEY)
    assert large.status_code == 413


async def test_without_a_key_a_client_that_goes_ends_its_request(
    http: httpx.AsyncClient, batcher: Batcher
) -> None:
    async with http.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as cut:
        await anext(cut.aiter_lines())
    while batcher.statistics().running:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert batcher.statistics().cancelled == 1


async def test_openais_package_tries_again_after_a_timeout_and_finds_the_answer(
    http: httpx.AsyncClient, batcher: Batcher
) -> None:
    url = str(http.base_url)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="one", max_retries=5) as client:
        made = await client.completions.create(
            model="", **{k: BODY[k] for k in ("prompt", "max_tokens", "seed")},  # type: ignore[call-overload]
            extra_body={"ignore_eos": True}, extra_headers=KEY, timeout=0.3,
        )  # fmt: skip
    assert made.usage.completion_tokens == 40
    assert n_requests(batcher) == 1

"""Responses that nobody reads have no rows beside those that somebody reads, and are the same."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from batcher_helpers import until
from raw_server import served

from pybatcher import Batcher
from pybatcher.http.application import application
from pybatcher.testing import FakeEngine, fake_batcher

BODY = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "seed": 3}
OTHER = {"prompt": "Another", "max_tokens": 40, "ignore_eos": True, "seed": 4}
EMBEDDINGS = {"input": [f"text {i}" for i in range(30)]}


class Asked:
    """A server, its engine, and requests to it."""

    def __init__(self, engine: FakeEngine, batcher: Batcher, http: httpx.AsyncClient) -> None:
        self.engine, self.batcher, self.http = engine, batcher, http

    async def ask(
        self, body: dict[str, Any], key: str = "", path: str = "/v1/completions"
    ) -> httpx.Response:
        return await self.http.post(
            path, json=body, headers={"idempotency-key": key} if key else {}
        )

    async def gone(self, body: dict[str, Any], key: str, path: str = "/v1/completions") -> None:
        """Ask for something, and go when it has begun."""
        before = self.batcher.statistics().submitted
        asking = asyncio.ensure_future(self.ask(body, key, path))
        await until(lambda: self.batcher.statistics().submitted > before)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    @property
    def rows(self) -> list[int]:
        """Sequences of each step so far."""
        return [len(plan.entries) for plan in self.engine.plans]


@asynccontextmanager
async def asked(**options: Any) -> AsyncIterator[Asked]:
    engine = FakeEngine(step_delay=0.003)
    async with (
        fake_batcher(engine, **options) as batcher,
        served(application(batcher), max_connections=64, backlog=64) as running,
        httpx.AsyncClient(base_url=running.url, timeout=60) as http,
    ):
        yield Asked(engine, batcher, http)


@pytest.mark.parametrize("more", [{}, {"n": 4}, {"stream": True}, {"prompt": ["Once", "Twice"]}])
async def test_who_has_gone_with_a_key_yields_and_finds_the_whole_response(
    more: dict[str, Any],
) -> None:
    async with asked() as one:
        body = {**BODY, **more}
        expected = (await one.ask(body)).json() if not more.get("stream") else None
        begun = asyncio.ensure_future(one.ask({**OTHER, "max_tokens": 90}))
        await until(lambda: one.batcher.statistics().running == 1)
        await one.gone(body, "a")
        await until(lambda: one.batcher.statistics().running == 1)
        n_steps, n_submitted = len(one.engine.plans), one.batcher.statistics().submitted
        assert one.batcher.statistics().queued
        await begun
        # It may have begun only now, and have some rows before it is seen to have no client.
        assert set(one.rows[n_steps + 10 : n_steps + 40]) == {1}
        again = await one.ask(body, "a")
        assert again.headers["idempotent-replayed"] == "true"
        assert one.batcher.statistics().submitted == n_submitted
        if expected is not None:
            assert again.json()["choices"] == expected["choices"]
        else:
            assert again.text.endswith("data: [DONE]\n\n")
        assert one.batcher.statistics().preemptions == 0
        one.batcher.check_idle()


async def test_embeddings_whose_client_has_gone_yield_too() -> None:
    async with asked() as one:
        begun = asyncio.ensure_future(one.ask({**OTHER, "max_tokens": 90}))
        await until(lambda: one.batcher.statistics().running == 1)
        await one.gone(EMBEDDINGS, "a", "/v1/embeddings")
        await asyncio.sleep(0.02)
        n_steps = len(one.engine.plans)
        assert (await begun).status_code == 200
        assert set(one.rows[n_steps:][:40]) == {1}
        again = await one.ask(EMBEDDINGS, "a", "/v1/embeddings")
        assert len(again.json()["data"]) == 30


async def test_alone_it_goes_on_without_a_client_and_is_kept() -> None:
    async with asked() as one:
        await one.gone(BODY, "a")
        await until(lambda: one.batcher.statistics().completed == 1)
        n_steps = len(one.engine.plans)
        assert (await one.ask(BODY, "a")).json()["usage"]["completion_tokens"] == 60
        assert len(one.engine.plans) == n_steps


@pytest.mark.slow
@pytest.mark.parametrize("key", [b"", b"idempotency-key: a\r\n"])
@pytest.mark.parametrize("prompt", ["Once", ["Once", "Twice"]])
async def test_a_reader_that_stops_yields_and_one_that_goes_on_has_all(
    key: bytes, prompt: Any
) -> None:
    body = {**BODY, "prompt": prompt, "max_tokens": 700, "stream": True, "logprobs": 5}
    n_outputs = len(prompt) if isinstance(prompt, list) else 1
    async with asked(n_ctx=8192) as one:
        expected = (await one.ask(body)).text
        data = json.dumps(body).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + key
        head += b"content-length: %d\r\n\r\n" % len(data)
        url = one.http.base_url
        begun = asyncio.ensure_future(one.ask({**OTHER, "max_tokens": 600}))
        await until(lambda: one.batcher.statistics().running == 1)
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
        own.setblocking(False)
        await asyncio.get_running_loop().sock_connect(own, (url.host, url.port))
        reader, writer = await asyncio.open_connection(sock=own)
        writer.transport.pause_reading()
        writer.write(head + data)
        assert (await begun).status_code == 200
        beside = sum(n == 1 + n_outputs for n in one.rows)
        assert 0 < beside < 400  # what is in buffers on the way, and some more
        writer.transport.resume_reading()
        found = (await reader.read()).decode().partition("\r\n\r\n")[2]
        writer.close()
        assert found.count('"finish_reason":"length"') == n_outputs
        assert sum(map(tokens_of, found.splitlines())) == 700 * n_outputs
        texts = sorted(texts_of(found.splitlines()).items())
        assert texts == sorted(texts_of(expected.splitlines()).items())


def choices_of(line: str) -> list[Any]:
    found: list[Any] = json.loads(line[6:])["choices"] if line.startswith("data: {") else []
    return found


def tokens_of(line: str) -> int:
    return sum(len(one["logprobs"]["tokens"]) for one in choices_of(line) if one["logprobs"])


def texts_of(lines: list[str]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for line in lines:
        for one in choices_of(line):
            texts[one["index"]] = texts.get(one["index"], "") + one["text"]
    return texts

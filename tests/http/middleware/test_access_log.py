"""The access log of HTTP: one line for each request, at its end, with how it ended."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from batcher_helpers import until
from http_served import served

from pybatcher import Batcher
from pybatcher.access_log import AccessLine
from pybatcher.calls.telemetry import CURRENT_COUNTS
from pybatcher.http import application
from pybatcher.http.middleware.access_log import AccessLog
from pybatcher.testing import FakeEngine, fake_batcher

BODY: dict[str, Any] = {"prompt": "Hi", "max_tokens": 4, "ignore_eos": True}
LOGGER = logging.getLogger("pybatcher.access")


def slow_engine() -> FakeEngine:
    """Return an engine that takes half a minute for an answer of these tests."""
    engine = FakeEngine(n_ctx=4096)
    engine.before_step = lambda _: time.sleep(0.01)
    return engine


class Lines(logging.Handler):
    """Collects the values of the lines."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.msg, AccessLine)
        self.fields.append(record.msg.fields())

    async def next(self) -> dict[str, Any]:
        """Wait for a line, and take it. There is one only."""
        await until(lambda: bool(self.fields))
        (found,) = self.fields
        self.fields.clear()
        return found


@pytest.fixture
async def lines() -> AsyncIterator[Lines]:
    handler = Lines()
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield handler
    LOGGER.setLevel(logging.NOTSET)
    LOGGER.removeHandler(handler)


@pytest.fixture
async def batcher() -> AsyncIterator[Batcher]:
    async with fake_batcher() as one:
        yield one


async def test_a_whole_answer_and_a_stream_have_their_tokens(
    batcher: Batcher, lines: Lines
) -> None:
    app = application(batcher, api_keys=["secret"])
    key = hashlib.sha256(b"secret").hexdigest()[:8]
    named = {"authorization": "Bearer secret", "x-request-id": "mine"}
    async with served(app) as url, httpx.AsyncClient(base_url=url, headers=named) as http:
        for more in ({}, {"stream": True}, {"prompt": ["Hi", "Hi"], "n": 2}, {"echo": True}):
            body = {**BODY, **more}
            assert (await http.post("/v1/completions", json=body)).status_code == 200
            found = await lines.next()
            n_prompts = len(body["prompt"]) if isinstance(body["prompt"], list) else 1
            assert found["prompt_tokens"] == 3 * n_prompts
            assert found["completion_tokens"] == 4 * n_prompts * body.get("n", 1)
            assert 0 <= found["ttft"] <= found["total"] < 60
            assert {name: found[name] for name in ("protocol", "operation", "route", "status")} == {
                "protocol": "http",
                "operation": "POST",
                "route": "/v1/completions",
                "status": 200,
            }
            assert (found["outcome"], found["key"], found["request_id"]) == (
                "finished",
                key,
                "mine",
            )
            assert "secret" not in str(found)


async def test_embeddings_and_scored_prompts_count_too(batcher: Batcher, lines: Lines) -> None:
    async with served(application(batcher)) as url, httpx.AsyncClient(base_url=url) as http:
        await http.post("/v1/embeddings", json={"input": ["Hi", "Hi"]})
        assert (await lines.next())["prompt_tokens"] == 6
        body = {"prompt": "Hi", "max_tokens": 0, "echo": True, "logprobs": 0}
        await http.post("/v1/completions", json=body)
        found = await lines.next()
        assert (found["prompt_tokens"], found["completion_tokens"]) == (3, None)


async def test_refusals_of_every_layer_have_a_line(batcher: Batcher, lines: Lines) -> None:
    app = application(batcher, api_keys=["secret"])
    async with served(app) as url, httpx.AsyncClient(base_url=url) as http:
        for status, path, headers in (
            (401, "/v1/models", {}),
            (403, "/v1/models", {"origin": "https://evil.example"}),
            (404, "/a%0Ab%20c?key=secret", {"x-api-key": "secret"}),
            (405, "/v1/completions", {"x-api-key": "secret"}),
        ):
            refused = await http.get(path, headers=headers)
            found = await lines.next()
            assert (refused.status_code, found["status"], found["outcome"]) == (
                status,
                status,
                "error",
            )
            assert refused.headers["x-request-id"] == found["request_id"]
            assert "secret" not in str(found)
        assert (await http.get("/a%0Ab%20c", headers={"x-api-key": "secret"})).status_code == 404
        assert (await lines.next())["route"] == "/a%0Ab%20c"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves(stream: bool, lines: Lines) -> None:
    async with fake_batcher(slow_engine()) as batcher, served(application(batcher)) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            body = {**BODY, "max_tokens": 3000, "stream": stream}
            if stream:
                async with http.stream("POST", "/v1/completions", json=body) as response:
                    await anext(response.aiter_bytes())
            else:
                asking = asyncio.create_task(http.post("/v1/completions", json=body))
                await until(lambda: batcher.statistics().running == 1)
                asking.cancel()
                await asyncio.wait({asking})
        found = await lines.next()
        assert (found["outcome"], found["prompt_tokens"]) == ("disconnected", None)
        assert (found["completion_tokens"] is not None) is stream


async def test_a_stream_that_ends_with_an_error(lines: Lines) -> None:
    async with fake_batcher(slow_engine()) as batcher:
        async with served(application(batcher)) as url, httpx.AsyncClient(base_url=url) as http:
            body = {**BODY, "max_tokens": 3000, "stream": True}
            async with http.stream("POST", "/v1/completions", json=body) as response:
                parts = response.aiter_bytes()
                await anext(parts)
                closing = asyncio.create_task(batcher.close(drain=False))
                assert b"error" in b"".join([part async for part in parts])
                await closing
        found = await lines.next()
        assert (found["status"], found["outcome"]) == (200, "error")
        assert found["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [(ValueError, 500, "error"), (asyncio.CancelledError, None, "cancelled")],
)
async def test_an_application_that_raises(
    error: type[BaseException], status: int | None, outcome: str, lines: Lines
) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise error

    scope = {"type": "http", "method": "GET", "path": "/x", "headers": []}
    with pytest.raises(error):
        await AccessLog(broken)(scope, None, None)  # type: ignore[arg-type]
    found = await lines.next()
    assert (found["status"], found["outcome"]) == (status, outcome)
    assert CURRENT_COUNTS.get() is None


@pytest.mark.parametrize(
    ("asked", "is_taken"),
    [
        *((b"mine-1", True), (b"x" * 128, True)),
        *((one, False) for one in (b"x" * 129, b"a b", b"", b"a\nb", b"\xe9")),
    ],
)
async def test_the_id_of_a_client_is_taken_if_it_is_short_and_printable(
    asked: bytes, is_taken: bool
) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    headers = [(b"x-request-id", asked)]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    await AccessLog(inner)(scope, None, send)  # type: ignore[arg-type]
    told = dict(sent[0]["headers"])[b"x-request-id"]
    assert (told == asked) is is_taken
    assert is_taken or told.startswith(b"req-")


async def test_without_a_reader_nothing_is_counted(
    batcher: Batcher, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pybatcher.access")
    seen: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(CURRENT_COUNTS.get())

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    await AccessLog(inner)(scope, None, None)  # type: ignore[arg-type]
    assert seen == [None]

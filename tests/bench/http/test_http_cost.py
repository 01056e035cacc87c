"""The reader of streams and the comparison of `bench.http_cost`."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from bench.http.http_cost import Connection, HttpTurn, compare, read_events
from pybatcher.http import application
from pybatcher.http.server.http_server import HttpServer
from pybatcher.testing import fake_batcher

CHUNK = b'data: {"choices":[{"text":"a"}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n'


def chunked(*parts: bytes) -> bytes:
    return b"".join(f"{len(p):x}\r\n".encode() + p + b"\r\n" for p in parts) + b"0\r\n\r\n"


async def test_events_are_counted_however_they_are_cut() -> None:
    whole = CHUNK * 2 + USAGE + b"data: [DONE]\n\n"
    for cut in range(1, len(whole)):
        reader = asyncio.StreamReader()
        reader.feed_data(chunked(whole[:cut], whole[cut:]))
        n_tokens, n_events, first = await read_events(reader, time.monotonic() - 1.0)
        assert (n_tokens, n_events) == (3, 2)
        assert first >= 1.0


async def test_a_stream_of_the_server_is_counted() -> None:
    async with fake_batcher() as batcher:
        app: Any = application(batcher)
        server = HttpServer(app, max_connections=4, backlog=4)
        sock = socket.create_server(("127.0.0.1", 0))
        await server.start([sock])
        try:
            one = Connection(*await asyncio.open_connection(*sock.getsockname()[:2]))
            more = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5}
            more |= {"temperature": 0, "ignore_eos": True}  # never fewer, in as many events
            for _ in range(2):  # the connection is kept
                n_tokens, n_events, first = await one.stream({"prompt": "Once", **more})
                assert n_tokens == 5
                assert 1 < n_events <= 5  # a token of a character that is not whole has none
                assert first > 0
            with pytest.raises(RuntimeError, match="400"):
                await one.stream({"prompt": 5, **more})
            await one.close()
        finally:
            server.close_soon()
            await server.gone()


def test_rounds_are_compared_one_by_one() -> None:
    turns = [
        HttpTurn(2.0, 100, 50, [0.1, 0.3], {"front": 1.0}),
        HttpTurn(1.0, 100, 100, [0.2], {"front": 3.0}),
        HttpTurn(1.0, 100, 100, [0.2], {"front": 2.0}),
    ]
    found = compare([100.0, 50.0, 100.0], turns)
    assert found["ratios"] == [0.5, 2.0, 1.0]
    assert found["ratio"] == 1.0
    assert found["events_per_token"] == 250 / 300
    assert found["ttft_s"] == 0.2
    assert found["cpu_s_per_token"] == {"front": 6.0 / 300}

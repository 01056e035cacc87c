"""Events of a stream: together where they come together, one last one for an error, an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from pybatcher import EngineFailedError
from pybatcher.http.base.event_stream import EventStream, event, steps_of
from pybatcher.testing import fake_batcher


class Client:
    """The other end of an ASGI response."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.gone = asyncio.Event()

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        await asyncio.sleep(0)

    @property
    def body(self) -> bytes:
        return b"".join(one.get("body", b"") for one in self.sent)


class Source:
    """What events are made of; `closed`: how often it was."""

    def __init__(self) -> None:
        self.closed = 0

    async def aclose(self) -> None:
        self.closed += 1


def stream_of(events: AsyncGenerator[bytes]) -> EventStream:
    return EventStream(events, source=Source())


async def numbers(
    n: int, ended: list[str], error: Exception | None = None
) -> AsyncGenerator[bytes]:
    try:
        for i in range(n):
            yield event({"i": i})
        if error is not None:
            raise error
    finally:
        ended.append("closed")


async def test_events_come_whole_and_the_response_ends() -> None:
    client, ended = Client(), []  # type: ignore[var-annotated]
    await stream_of(numbers(2, ended))({}, client.receive, client.send)
    assert client.sent[0]["status"] == 200
    assert client.body == b'data: {"i":0}\n\ndata: {"i":1}\n\n'
    assert client.sent[-1]["more_body"] is False
    assert ended == ["closed"]


async def test_an_error_after_the_first_byte_is_one_last_event() -> None:
    client, ended = Client(), []  # type: ignore[var-annotated]
    failing = numbers(1, ended, EngineFailedError("it broke"))
    await stream_of(failing)({}, client.receive, client.send)
    assert b'"message":"it broke"' in client.body
    assert client.sent[-1]["more_body"] is False
    assert ended == ["closed"]


async def test_who_hangs_up_ends_it() -> None:
    client, ended = Client(), []  # type: ignore[var-annotated]
    sending = asyncio.ensure_future(
        stream_of(numbers(10**9, ended))({}, client.receive, client.send)
    )
    while len(client.sent) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    client.gone.set()
    await sending
    assert ended == ["closed"]


@pytest.mark.parametrize("n_turns", range(5))
async def test_who_is_cancelled_before_the_head_is_sent_closes_the_source(n_turns: int) -> None:
    """Also where no task of it has begun: n_turns of the loop come before."""
    client, source, sends = Client(), Source(), asyncio.Event()

    async def send(message: Any) -> None:
        await sends.wait()

    response = EventStream(numbers(2, []), source=source)
    sending = asyncio.ensure_future(response({}, client.receive, send))
    await asyncio.sleep(0)
    for _ in range(n_turns):
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert source.closed == 1


async def test_who_hangs_up_before_the_head_is_sent_frees_its_request_at_once() -> None:
    async with fake_batcher() as batcher:
        client, stream = Client(), batcher.stream("Hi", max_tokens=10**6, ignore_eos=True)
        first = await anext(stream)

        async def events() -> AsyncGenerator[bytes]:
            async for pieces in steps_of(stream, first):
                yield event({"n": len(pieces)})

        async def send(message: Any) -> None:
            await asyncio.Event().wait()

        client.gone.set()
        await EventStream(events(), source=stream)({}, client.receive, send)
        assert stream._closed  # though this test still holds it


def test_an_event_is_one_line_of_utf_8() -> None:
    assert event({"a": "x\ny\u2028"}, "named") == (
        b'event: named\ndata: {"a":"x\\ny\xe2\x80\xa8"}\n\n'
    )
    assert event({"a": "\ud800"}) == b'data: {"a":"?"}\n\n'


async def test_pieces_that_came_together_are_one_step() -> None:
    async with fake_batcher() as batcher:
        stream = batcher.stream("Hi", max_tokens=9, ignore_eos=True)
        first = await anext(stream)
        while not stream._reply.ended:  # noqa: ASYNC110
            await asyncio.sleep(0)
        steps = [len(pieces) async for pieces in steps_of(stream, first)]
        assert steps == [9]
        assert stream.ready() == []

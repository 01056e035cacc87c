"""Events of a stream: together where they come together, one last one for an error, an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from pybatcher import EngineFailedError
from pybatcher.http.event_stream import EventStream, event, steps_of
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
    await EventStream(numbers(2, ended))({}, client.receive, client.send)
    assert client.sent[0]["status"] == 200
    assert client.body == b'data: {"i":0}\n\ndata: {"i":1}\n\n'
    assert client.sent[-1]["more_body"] is False
    assert ended == ["closed"]


async def test_an_error_after_the_first_byte_is_one_last_event() -> None:
    client, ended = Client(), []  # type: ignore[var-annotated]
    failing = numbers(1, ended, EngineFailedError("it broke"))
    await EventStream(failing)({}, client.receive, client.send)
    assert b'"message":"it broke"' in client.body
    assert client.sent[-1]["more_body"] is False
    assert ended == ["closed"]


async def test_who_hangs_up_ends_it() -> None:
    client, ended = Client(), []  # type: ignore[var-annotated]
    sending = asyncio.ensure_future(
        EventStream(numbers(10**9, ended))({}, client.receive, client.send)
    )
    while len(client.sent) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    client.gone.set()
    await sending
    assert ended == ["closed"]


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

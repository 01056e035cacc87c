"""Events of a stream: together where they come together, one last one for an error, an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from http_served import served
from starlette.requests import Request

from pybatcher import EngineFailedError, QueueFullError
from pybatcher.http import application
from pybatcher.http.base import event_stream
from pybatcher.http.base.event_stream import EventStream, event, steps_of
from pybatcher.testing import FailWhen, FakeEngine, FaultyEngine, HangStep, fake_batcher
from pybatcher.web import ClientGoneError


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
        await anext(stream)

        async def events() -> AsyncGenerator[bytes]:
            async for pieces in steps_of(stream):
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
        await anext(stream)
        while not stream._reply.ended:  # noqa: ASYNC110
            await asyncio.sleep(0)
        steps = [len(pieces) async for pieces in steps_of(stream)]
        assert steps == [8]
        assert stream.ready() == []


class Slow:
    """Events that come when a test sends them. An error is raised, and None is the end."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.was_closed = False

    async def events(self) -> AsyncGenerator[bytes]:
        try:
            while (one := await self.told.get()) is not None:
                if isinstance(one, Exception):
                    raise one
                yield one
        finally:
            self.was_closed = True


async def sent(client: Client, data: bytes) -> None:
    """Return when the client has received these bytes."""
    while data not in client.body:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_PATIENCE", 0.01)
    monkeypatch.setattr(event_stream, "_QUIET", 0.01)


def request_of(client: Client) -> Request:
    return Request({"type": "http"}, client.receive)


async def test_comments_are_sent_while_no_event_comes(impatient: None) -> None:
    """Before the first event and between events, and each is whole."""
    client, slow = Client(), Slow()
    response = EventStream(slow.events(), source=Source(), opening=b"O", comment=b"c")
    await response.begun(request_of(client))
    sending = asyncio.ensure_future(response({}, client.receive, client.send))
    await sent(client, b"Occ")
    slow.told.put_nowait(b"A")
    await sent(client, b"Acc")
    for one in (b"B", None):
        slow.told.put_nowait(one)
    await sending
    assert client.sent[0]["type"] == "http.response.start"
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert client.body.replace(b"c", b"") == b"OAB"
    n_sent = len(client.sent)
    await asyncio.sleep(0.03)
    assert len(client.sent) == n_sent, "a comment after the end"


async def test_no_comment_is_sent_while_events_come() -> None:
    client, slow = Client(), Slow()
    slow.told.put_nowait(b"A")
    slow.told.put_nowait(None)
    response = await EventStream(slow.events(), source=Source()).begun(request_of(client))
    await response({}, client.receive, client.send)
    assert client.body == b"A"


async def test_a_late_response_begins_with_a_comment(impatient: None) -> None:
    client, slow = Client(), Slow()
    response = await EventStream(slow.events(), source=Source()).begun(request_of(client))
    sending = asyncio.ensure_future(response({}, client.receive, client.send))
    await sent(client, b": keep-alive\n\n")
    slow.told.put_nowait(None)
    await sending


async def test_an_early_error_is_raised_and_a_late_one_is_an_event(impatient: None) -> None:
    client, early, late = Client(), Slow(), Slow()
    early.told.put_nowait(QueueFullError("it is full", retry_after=1.0))
    source = Source()
    with pytest.raises(QueueFullError):
        await EventStream(early.events(), source=source).begun(request_of(client))
    assert source.closed == 1
    response = await EventStream(late.events(), source=Source()).begun(request_of(client))
    late.told.put_nowait(QueueFullError("it is full", retry_after=1.0))
    await response({}, client.receive, client.send)
    assert b'"code":"queue_full"' in client.body
    assert client.sent[-1]["more_body"] is False


async def test_an_unexpected_late_error_is_an_event_too(
    impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    client, slow = Client(), Slow()
    response = await EventStream(slow.events(), source=Source()).begun(request_of(client))
    slow.told.put_nowait(ZeroDivisionError("secret"))
    await response({}, client.receive, client.send)
    assert b'"code":"internal_error"' in client.body
    assert b"secret" not in client.body
    assert "ZeroDivisionError" in caplog.text


async def test_who_hangs_up_before_the_first_event_ends_the_work(impatient: None) -> None:
    """Within the short wait, and after the response has begun."""
    client, slow, source = Client(), Slow(), Source()
    response = await EventStream(slow.events(), source=source).begun(request_of(client))
    client.gone.set()
    await response({}, client.receive, client.send)
    assert (slow.was_closed, source.closed) == (True, 1)
    slow, source = Slow(), Source()
    with pytest.raises(ClientGoneError):
        await EventStream(slow.events(), source=source).begun(request_of(client))
    assert (slow.was_closed, source.closed) == (True, 1)


async def test_no_comment_waits_behind_an_event_that_is_not_read(impatient: None) -> None:
    client, slow, reads = Client(), Slow(), asyncio.Event()

    async def send(message: Any) -> None:
        if message.get("body"):
            await reads.wait()
        await client.send(message)

    response = EventStream(slow.events(), source=Source(), comment=b"c")
    slow.told.put_nowait(b"A")
    sending = asyncio.ensure_future(response({}, client.receive, send))
    await asyncio.sleep(0.1)
    reads.set()
    slow.told.put_nowait(None)
    await sending
    assert client.body.count(b"c") <= 1, "one may have been sent after the event"


TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
STREAMS: list[tuple[str, dict[str, Any], bytes, bytes]] = [
    ("/v1/chat/completions", CHAT, b"", b": keep-alive\n\n"),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 2}, b"", b": keep-alive\n\n"),
    (
        "/v1/completions",
        {"prompt": ["Hi", "Ho"], "max_tokens": 0, "echo": True, "logprobs": 1},
        b"",
        b": keep-alive\n\n",
    ),
    ("/v1/responses", {"input": "Hi"}, b"event: response.created\n", b": keep-alive\n\n"),
    ("/v1/messages", CHAT, b"event: message_start\n", b'event: ping\ndata: {"type":"ping"}\n\n'),
]


@pytest.mark.parametrize(("path", "body", "first", "comment"), STREAMS)
async def test_a_stream_begins_while_its_request_waits(
    path: str, body: dict[str, Any], first: bytes, comment: bytes, impatient: None
) -> None:
    """The engine hangs before the first token, then in the middle of the stream."""
    release = threading.Event()
    engine = FaultyEngine(FakeEngine(), HangStep(1, release))
    async with (
        fake_batcher(engine, chat_template=TEMPLATE) as batcher,
        served(application(batcher)) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as http,
        http.stream("POST", path, json={**body, "stream": True}) as response,
    ):
        assert response.status_code == 200
        data = b""
        async for part in response.aiter_bytes():
            data += part
            if comment in data:
                release.set()
        assert data.startswith(first or comment)
        assert b'"error":{' not in data


@pytest.mark.parametrize(("path", "body"), [one[:2] for one in STREAMS])
async def test_errors_before_and_after_the_begin_of_a_stream(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of admission is a status. A later one is an event in the form of the API."""
    release = threading.Event()
    faults = (HangStep(1, release), FailWhen(lambda _: True))
    engine = FaultyEngine(FakeEngine(n_parallel=1), *faults)
    async with (
        fake_batcher(engine, chat_template=TEMPLATE, max_queue_requests=1) as batcher,
        served(application(batcher)) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as http,
    ):
        wrong = await http.post(path, json={**body, "stream": True, "temperature": -1})
        assert wrong.status_code == 400, wrong.text
        one = body | {"prompt": "Hi"} if "prompt" in body else body
        monkeypatch.setattr(event_stream, "_PATIENCE", 0.01)
        async with http.stream("POST", path, json={**one, "stream": True}) as response:
            assert response.status_code == 200
            monkeypatch.setattr(event_stream, "_PATIENCE", 20.0)
            try:
                while not batcher.statistics().running:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                waiting = asyncio.ensure_future(batcher.generate("Hi", max_tokens=1))
                while not batcher.statistics().queued:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                full = await http.post(path, json={**one, "stream": True})
                assert full.status_code == 429, full.text
            finally:
                release.set()
            data = b"".join([part async for part in response.aiter_bytes()])
            await asyncio.gather(waiting, return_exceptions=True)
        assert b'"error":{' in data
        if path == "/v1/messages":
            assert b'event: error\ndata: {"type":"error","error":{"type":"api_error"' in data
        elif path == "/v1/responses":
            assert b"event: response.failed\n" in data
        else:
            assert b'data: {"error":{"message":' in data

"""Clients that read slowly, or not at all: nobody else waits, and memory stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgpack
import pytest
from batcher_helpers import until
from session_helpers import ServiceOf, connected

from pybatcher.calls.completion import Piece
from pybatcher.sidecar.protocol.connection import ServerProtocol
from pybatcher.sidecar.session import outgoing
from pybatcher.sidecar.session.in_flight import InFlightOutput
from pybatcher.sidecar.session.incoming import Incoming
from pybatcher.sidecar.session.session import ServerSession
from pybatcher.testing import fake_batcher


class Transport:
    """Notes what is written, and whether it is read from."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.reads = True

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    @property
    def frames(self) -> list[Any]:
        unpacker = msgpack.Unpacker()
        unpacker.feed(b"".join(self.writes))
        return list(unpacker)


def open_outgoing() -> tuple[outgoing.Outgoing, ServerProtocol, Transport]:
    protocol, transport = ServerProtocol(), Transport()
    incoming = Incoming(lambda _data: None)
    incoming.open(cast(asyncio.Transport, transport))
    made = outgoing.Outgoing(protocol, incoming)
    made.open(cast(asyncio.Transport, transport))
    return made, protocol, transport


async def test_what_is_said_in_one_turn_of_the_loop_is_one_write() -> None:
    made, protocol, transport = open_outgoing()
    for i in range(5):
        protocol.notify("x", [i])
        made.flush_soon()
    assert transport.writes == []
    await asyncio.sleep(0)
    assert len(transport.writes) == 1
    assert [frame[2] for frame in transport.frames] == [[0], [1], [2], [3], [4]]
    protocol.notify("x", [5])
    made.flush_soon()
    await asyncio.sleep(0)
    assert len(transport.writes) == 2


async def test_who_lets_answers_pile_up_is_not_read_from_until_it_reads() -> None:
    made, protocol, transport = open_outgoing()

    def answer(n_bytes: int) -> None:
        protocol.notify("x", ["a" * n_bytes])
        made.flush()

    answer(10 * outgoing._UNREAD_ANSWERS)  # it may yet read that
    assert transport.reads
    made.paused()
    assert not made.may_send
    for _ in range(4):
        assert transport.reads
        answer(outgoing._UNREAD_ANSWERS // 4)
    assert not transport.reads
    answer(1)
    made.resumed()
    assert made.may_send
    assert transport.reads
    made.paused()
    answer(outgoing._UNREAD_ANSWERS // 2)
    assert transport.reads
    made.resumed()


async def test_after_the_end_nothing_is_written() -> None:
    made, protocol, transport = open_outgoing()
    made.close()
    protocol.notify("x", [])
    made.flush()
    assert transport.writes == []


class Kept(ServiceOf):
    """Keeps the replies, for tests that say themselves what is drawn."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.replies: list[InFlightOutput] = []

    async def submit(self, call: Any, reply: Any) -> range:
        self.replies.append(reply)
        return range(0)


async def test_deltas_wait_while_acknowledgements_and_cancels_are_read() -> None:
    async with fake_batcher() as batcher:
        backing = Kept(batcher)
        session, transport = ServerSession(backing, on_end=lambda _: None), Transport()
        session.connection_made(cast(asyncio.Transport, transport))
        for msgid in (1, 2):
            opts = {"stream": True, "window": 4}
            session.data_received(msgpack.packb([0, msgid, "generate", ["hi", opts]]))
        await until(lambda: len(backing.replies) == 2)
        first, second = backing.replies

        def push(reply: InFlightOutput, n: int) -> None:
            for i in range(n):
                reply.push(Piece("x", (i,), None))

        push(first, 3)
        session.pause_writing()
        push(first, 1000)
        push(second, 1000)
        await asyncio.sleep(0)
        assert len(transport.frames) == 3
        assert transport.reads
        session.data_received(msgpack.packb([2, "ack", [1, 2]]))
        session.data_received(msgpack.packb([2, "cancel", [2]]))
        await asyncio.sleep(0)
        assert [frame[:2] for frame in transport.frames[3:]] == [[1, 2]]
        session.resume_writing()
        await asyncio.sleep(0)
        (frame,) = transport.frames[4:]
        assert (frame[2][0], frame[2][1]["seq"], frame[2][1]["text"]) == (1, 4, "x" * 1000)
        session.connection_lost(None)


@pytest.mark.parametrize("paused", [False, True])
async def test_an_end_does_not_wait_for_a_slow_reader(paused: bool) -> None:
    async with fake_batcher() as batcher:
        backing = Kept(batcher)
        session, transport = ServerSession(backing, on_end=lambda _: None), Transport()
        session.connection_made(cast(asyncio.Transport, transport))
        session.data_received(msgpack.packb([0, 1, "generate", ["hi", {"stream": True}]]))
        await until(lambda: len(backing.replies) == 1)
        completion = await batcher.generate("hi", max_tokens=3, ignore_eos=True)
        if paused:
            session.pause_writing()
        for i in range(3):
            backing.replies[0].push(Piece("x", (i,), None))
        backing.replies[0].finish(completion)
        await asyncio.sleep(0)
        *deltas, response = transport.frames
        assert "".join(frame[2][1]["text"] for frame in deltas) == "xxx"
        assert len(deltas) == (1 if paused else 3)
        assert response[:2] == [1, 1]
        assert session.n_in_flight == 0
        session.connection_lost(None)


async def _flood(send: Callable[[], object], session: ServerSession) -> int:
    """Ask and read nothing, until the server does not read either. How often it was asked."""
    n = 0
    while not session._incoming._is_held and n < 20000:
        send()
        n += 1
        await asyncio.sleep(0)
    assert n < 20000
    return n


async def test_a_client_that_asks_and_never_reads_is_not_read_from() -> None:
    async with (
        fake_batcher() as batcher,
        connected(ServiceOf(batcher)) as (session, peer),
        connected(ServiceOf(batcher)) as (_, other),
    ):
        transport = cast(asyncio.Transport, peer.writer.transport)
        transport.pause_reading()
        n = await _flood(lambda: peer.request("tokenize", "x" * 1000), session)
        assert session._transport is not None
        held = session._transport.get_write_buffer_size()
        assert held < 2 * (outgoing._UNSENT + outgoing._UNREAD_ANSWERS)
        for _ in range(200):
            peer.request("tokenize", "x" * 1000)
        assert (await other.ask("generate", "hi", {"max_tokens": 3}))["text"]
        assert session._transport.get_write_buffer_size() == held
        transport.resume_reading()
        for msgid in range(1, n + 201):
            assert len((await peer.answer(msgid))[1]) == 1001
        assert session.may_send


async def test_a_client_that_is_not_read_from_and_goes_is_noticed() -> None:
    async with fake_batcher() as batcher:
        async with connected(ServiceOf(batcher)) as (session, peer):
            cast(asyncio.Transport, peer.writer.transport).pause_reading()
            await _flood(lambda: peer.request("tokenize", "x" * 1000), session)
            for _ in range(3):
                peer.request("generate", "hi", {"max_tokens": 5000})
        # `connected` waits for the session's end.
        await until(lambda: batcher.statistics().running == batcher.statistics().queued == 0)


@pytest.mark.slow
async def test_a_stream_that_nobody_reads_waits_and_comes_whole() -> None:
    async with (
        fake_batcher() as batcher,
        connected(ServiceOf(batcher)) as (session, peer),
    ):
        transport = cast(asyncio.Transport, peer.writer.transport)
        transport.pause_reading()
        opts = {"max_tokens": 2000, "ignore_eos": True, "stream": True, "logprobs": 32}
        msgid = peer.request("generate", "hi", opts)
        await until(lambda: not session.may_send)
        n_sent = batcher.statistics().generated_tokens
        await until(lambda: batcher.statistics().generated_tokens > n_sent + 20)
        assert session.n_in_flight == 1
        transport.resume_reading()
        error, result = await peer.answer(msgid)
        assert error is None
        deltas = [delta for _, delta in peer.notifications("delta")]
        assert [delta["seq"] for delta in deltas] == list(range(1, len(deltas) + 1))
        assert len(deltas) < 2000
        assert "".join(delta["text"] for delta in deltas) == result["text"]
        assert [one for delta in deltas for one in delta["logprobs"]] == result["logprobs"]

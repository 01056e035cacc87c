"""The asking end of a connection: every call ends once, whatever the other end does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest
from batcher_helpers import until

from pybatcher.errors import ConnectionLostError, InvalidRequestError, PybatcherError
from pybatcher.sidecar.replay.link import Link


class Connected:
    """A link, and the socket at its other end in the hands of the test."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[Any]]] = []
        self.lost: list[ConnectionLostError] = []
        self.ended: list[tuple[int, PybatcherError | None, Any]] = []
        self.deltas: list[tuple[int, dict[str, Any]]] = []
        self._unpacker = msgpack.Unpacker()

    async def open(self) -> None:
        ours, self._theirs = socket.socketpair()
        for end in (ours, self._theirs):
            end.setblocking(False)
        self.link = Link(
            peer="the other end",
            on_notification=lambda method, params: self.told.append((method, params)),
            on_lost=self.lost.append,
        )
        await asyncio.get_running_loop().create_connection(lambda: self.link, sock=ours)

    def close(self) -> None:
        self._theirs.close()
        self.link.close()

    def start(self, method: str = "generate", *params: Any) -> int:
        ids: list[int] = []
        call_id = self.link.start_call(
            method,
            list(params),
            lambda error, result: self.ended.append((ids[0], error, result)),
            lambda delta: self.deltas.append((ids[0], delta)),
        )
        ids.append(call_id)
        return call_id

    async def hear(self) -> Any:
        """The next frame that it sent."""
        while True:
            for frame in self._unpacker:
                return frame
            data = await asyncio.get_running_loop().sock_recv(self._theirs, 65536)
            self._unpacker.feed(data)

    async def say(self, *frames: Any) -> None:
        await self.say_bytes(b"".join(map(msgpack.packb, frames)))

    async def say_bytes(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._theirs, data)
        for _ in range(5):
            await asyncio.sleep(0)

    def hang_up(self) -> None:
        self._theirs.close()


@pytest.fixture
async def connected() -> AsyncIterator[Connected]:
    made = Connected()
    await made.open()
    yield made
    made.close()
    await asyncio.sleep(0)


async def test_calls_are_answered_in_any_order(connected: Connected) -> None:
    first, second = connected.start("generate", "a"), connected.start("generate", "b")
    assert await connected.hear() == [0, first, "generate", ["a"]]
    assert await connected.hear() == [0, second, "generate", ["b"]]
    assert connected.link.n_in_flight == 2
    await connected.say([1, second, None, "B"], [1, first, None, "A"])
    assert connected.ended == [(second, None, "B"), (first, None, "A")]
    assert connected.link.n_in_flight == 0


async def test_deltas_go_to_their_calls_before_the_end(connected: Connected) -> None:
    first, second = connected.start(), connected.start()
    deltas = [[2, "delta", [second, {"seq": 1}]], [2, "delta", [first, {"seq": 1}]]]
    await connected.say(*deltas, [1, second, None, {}], [2, "delta", [second, {"seq": 2}]])
    assert connected.deltas == [(second, {"seq": 1}), (first, {"seq": 1})]
    assert not connected.lost  # a delta too many is of no interest


async def test_an_error_is_raised_as_what_it_was(connected: Connected) -> None:
    asking = asyncio.ensure_future(connected.link.request("tokenize", ["x"]))
    (_, msgid, _, _) = await connected.hear()
    error = {"code": "invalid_request", "message": "n is 0", "retryable": False}
    await connected.say([1, msgid, error, None])
    with pytest.raises(InvalidRequestError, match="n is 0"):
        await asking


async def test_who_waits_no_more_cancels_and_hears_nothing(connected: Connected) -> None:
    asking = asyncio.ensure_future(connected.link.request("score", []))
    (_, msgid, _, _) = await connected.hear()
    asking.cancel()
    assert await connected.hear() == [2, "cancel", [msgid]]
    call = connected.start()
    connected.link.cancel(call)
    connected.link.cancel(call + 1)  # never made: nothing
    await connected.say([2, "delta", [call, {}]], [1, call, None, {}], [1, msgid, None, {}])
    assert not connected.ended
    assert not connected.deltas
    assert not connected.lost


async def test_what_answers_nothing_is_told(connected: Connected) -> None:
    await connected.say([2, "beat", [True, 5, {}]])
    assert connected.told == [("beat", [True, 5, {}])]


async def test_when_it_is_lost_every_call_ends_and_then_it_says_so(connected: Connected) -> None:
    call = connected.start()
    asking = asyncio.ensure_future(connected.link.request("health", []))
    await connected.hear()
    connected.hang_up()
    with pytest.raises(ConnectionLostError, match="the other end"):
        await asking
    ((ended, error, result),) = connected.ended
    assert (ended, type(error), result) == (call, ConnectionLostError, None)
    assert len(connected.lost) == 1
    with pytest.raises(ConnectionLostError):
        connected.start()
    connected.link.notify("ack", [])  # nothing happens
    connected.link.close()
    await asyncio.sleep(0)
    assert len(connected.lost) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        msgpack.packb([0, 1, "generate", []]),
        msgpack.packb([1, 77, None, None]),
        msgpack.packb([2, "delta", [1]]),
        msgpack.packb([2, "delta", ["a", {}]]),
        msgpack.packb({}),
        b"\xdd\xff\xff\xff\xff",
    ],
)
async def test_a_peer_that_breaks_the_protocol_is_left(connected: Connected, data: bytes) -> None:
    connected.start()
    await connected.hear()
    await connected.say_bytes(data)
    assert len(connected.lost) == 1
    ((_, error, _),) = connected.ended
    assert isinstance(error, ConnectionLostError)
    assert "the other end" in str(error)


async def test_closing_ends_what_is_in_flight(connected: Connected) -> None:
    connected.start()
    await connected.hear()
    connected.link.close()
    await until(lambda: connected.ended)
    assert [type(error) for _, error, _ in connected.ended] == [ConnectionLostError]

"""A client that sends a lot has its turn, and then others have theirs."""

from __future__ import annotations

import asyncio
import random
import time
from typing import cast

import pytest

from pybatcher.sidecar.session import incoming
from pybatcher.sidecar.session.incoming import Incoming


class Transport:
    """Notes whether it is read from; complains about what asyncio's would complain about."""

    def __init__(self) -> None:
        self.reads = True

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def is_closing(self) -> bool:
        return False


def opened(taken: list[bytes], slow: float = 0.0) -> tuple[Incoming, Transport]:
    def take(data: bytes) -> None:
        taken.append(data)
        if slow:
            time.sleep(slow)

    made, transport = Incoming(take), Transport()
    made.open(cast(asyncio.ReadTransport, transport))
    return made, transport


async def test_a_little_is_taken_at_once() -> None:
    taken: list[bytes] = []
    made, transport = opened(taken)
    for data in (b"a", b"b" * 1000, b"c" * 1024):
        made.feed(data)
        assert taken[-1] == data
    assert transport.reads


async def test_a_lot_is_taken_in_turns_and_in_order_and_no_more_is_read_meanwhile() -> None:
    taken: list[bytes] = []
    made, transport = opened(taken, slow=2 * incoming._TURN)
    data = random.Random(1).randbytes(10_000)
    made.feed(data)
    assert len(taken) == 1  # its turn is over
    assert not transport.reads
    turns = 0
    while not transport.reads:
        await asyncio.sleep(0)
        turns += 1
        assert len(taken) <= turns + 1
    assert b"".join(taken) == data
    assert turns >= 8


async def test_what_comes_although_it_is_not_read_comes_after_what_there_is() -> None:
    taken: list[bytes] = []
    made, transport = opened(taken, slow=2 * incoming._TURN)
    made.feed(b"a" * 3000)
    made.feed(b"b" * 3000)
    while not transport.reads:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert b"".join(taken) == b"a" * 3000 + b"b" * 3000


async def test_while_it_is_held_nothing_is_taken() -> None:
    taken: list[bytes] = []
    made, transport = opened(taken)
    made.hold()
    made.hold()
    assert not transport.reads
    made.feed(b"a" * 5000)
    made.feed(b"b")
    await asyncio.sleep(0)
    assert not taken
    made.release()
    assert b"".join(taken) == b"a" * 5000 + b"b"
    assert transport.reads
    made.release()
    assert transport.reads


async def test_held_in_its_turn_it_stops_there() -> None:
    taken: list[bytes] = []

    def take(data: bytes) -> None:
        taken.append(data)
        if len(taken) == 2:
            made.hold()

    made, transport = Incoming(take), Transport()
    made.open(cast(asyncio.ReadTransport, transport))
    made.feed(b"".join(bytes([i]) * incoming._PIECE for i in range(5)))
    assert len(taken) == 2
    assert not transport.reads
    await asyncio.sleep(0)
    assert len(taken) == 2
    made.release()
    assert [data[0] for data in taken] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("slow", [0.0, 2 * incoming._TURN])
async def test_after_the_end_nothing_is_taken(slow: float) -> None:
    taken: list[bytes] = []
    made, _ = opened(taken, slow)
    made.feed(b"a" * 5000)
    n_taken = len(taken)
    made.close()
    await asyncio.sleep(0)
    assert len(taken) == n_taken

"""A connection that is made when somebody waits for one, over and over until it is there."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from batcher_helpers import PATIENCE, until
from virtual_time import in_virtual_time

from pybatcher import BatcherClosedError, ConnectionLostError
from pybatcher.sidecar.client.connector import Connector

SHORT = 0.2  # seconds; of waits that are to be in vain


class Server:
    """What is connected to: counts the tries, and fails as many of them as it is told to."""

    def __init__(self, failures: float = 0) -> None:
        self.failures = failures
        self.tries = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def connect(self) -> int:
        self.tries += 1
        await self.answers.wait()
        if self.failures:
            self.failures -= 1
            raise ConnectionRefusedError(111, "nobody listens")
        return self.tries


def connector(server: Server, **options: Any) -> Connector[int]:
    options = {"try_timeout": PATIENCE, "random": Random(0)} | options
    return Connector("/run/there.sock", server.connect, **options)


async def test_nothing_happens_until_somebody_waits_and_then_it_is_kept() -> None:
    server = Server()
    one = connector(server)
    await asyncio.sleep(0)
    assert (server.tries, one.is_connected) == (0, False)
    assert await one.connection(PATIENCE) == 1
    assert await one.connection(PATIENCE) == 1
    assert one.is_connected
    one.close()


async def test_it_tries_until_it_is_there_and_all_who_wait_get_the_same() -> None:
    server = Server(failures=3)
    one = connector(server)
    assert await asyncio.gather(*(one.connection(PATIENCE) for _ in range(5))) == [4] * 5
    one.close()


@in_virtual_time
async def test_who_has_waited_long_enough_is_told_where_and_why_and_the_way_out() -> None:
    server = Server(failures=float("inf"))
    one = connector(server)
    with pytest.raises(ConnectionLostError) as caught:
        await one.connection(SHORT)
    for part in ("/run/there.sock", "0.2 s", "nobody listens", "is `pybatcher serve` running"):
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    assert not one.is_connected
    one.close()


async def test_a_first_connection_waits_less_for_a_socket_that_is_not_there() -> None:
    server = Server(failures=float("inf"))
    one = connector(server)
    with pytest.raises(ConnectionLostError, match=r"within 0\.01 s: .*nobody listens"):
        await one.first_connection(PATIENCE, 0.01)
    one.close()


async def test_a_first_connection_waits_its_whole_time_for_one_who_does_not_answer() -> None:
    server = Server()
    server.answers.clear()
    one = connector(server)
    waiting = asyncio.create_task(one.first_connection(PATIENCE, 0.01))
    with pytest.raises(ConnectionLostError):
        await one.connection(0.05)  # by now the shorter time is over
    server.answers.set()
    assert await waiting == 1
    with pytest.raises(ConnectionLostError, match=r"within 0\.02 s"):
        await connector(Server(failures=float("inf"))).first_connection(0.02, float("inf"))
    one.close()


async def test_the_reason_is_that_of_the_last_try() -> None:
    server = Server(failures=1)
    one = connector(server)
    waiting = asyncio.create_task(one.connection(PATIENCE))
    await until(lambda: server.tries == 1)
    server.answers.clear()
    await until(lambda: server.tries == 2)
    with pytest.raises(ConnectionLostError, match="it is there and does not answer"):
        await one.connection(0.01)
    server.answers.set()
    assert await waiting == 2
    one.close()


@in_virtual_time
async def test_it_stops_trying_when_nobody_waits_any_more_and_begins_again_for_the_next() -> None:
    server = Server(failures=float("inf"))
    one = connector(server)
    with pytest.raises(ConnectionLostError):
        await one.connection(SHORT)
    await until(lambda: one._trying is None)
    tries = server.tries
    await asyncio.sleep(3600.0)
    assert server.tries == tries
    server.failures = 0
    assert await one.connection(PATIENCE) == tries + 1
    one.close()


@pytest.mark.slow
@in_virtual_time
async def test_who_waits_for_longer_than_the_longest_delay_sees_a_try() -> None:
    """However long nobody was there before."""
    server = Server(failures=float("inf"))
    one = connector(server, longest_delay=SHORT / 4)
    with pytest.raises(ConnectionLostError):
        await one.connection(3600.0)
    server.failures = 0
    assert await one.connection(SHORT) == server.tries
    one.close()


async def test_one_who_waits_in_vain_or_is_cancelled_takes_nothing_from_the_others() -> None:
    server = Server()
    server.answers.clear()
    one = connector(server)
    patient = asyncio.create_task(one.connection(PATIENCE))
    cancelled = asyncio.create_task(one.connection(PATIENCE))
    with pytest.raises(ConnectionLostError, match="it is there and does not answer"):
        await one.connection(0.01)
    server.answers.set()
    cancelled.cancel()  # in the turn of the loop in which the connection is made
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await patient == 1
    one.close()


async def test_a_try_that_hangs_is_given_up_and_another_made() -> None:
    server = Server()
    server.answers.clear()
    one = connector(server, try_timeout=0.01)
    waiting = asyncio.create_task(one.connection(PATIENCE))
    await until(lambda: server.tries == 2)
    server.answers.set()
    assert await waiting > 1
    one.close()


async def test_what_is_lost_is_made_anew_when_somebody_waits() -> None:
    server = Server()
    one = connector(server)
    await one.connection(PATIENCE)
    one.lost(ConnectionLostError("gone"))
    await asyncio.sleep(0)
    assert (server.tries, one.is_connected) == (1, False)
    assert await one.connection(PATIENCE) == 2
    one.close()


async def test_what_is_wanted_is_made_anew_by_itself() -> None:
    server, wanted = Server(), [False]
    one = connector(server, is_wanted=lambda: wanted[0])
    one.wake()
    await asyncio.sleep(0)
    assert server.tries == 0
    wanted[0] = True
    one.wake()
    await until(lambda: one.is_connected)
    one.lost(ConnectionLostError("gone"))
    await until(lambda: one.is_connected)
    assert server.tries == 2
    wanted[0] = False
    one.lost(ConnectionLostError("gone"))
    assert one._trying is None
    one.close()


async def test_close_ends_the_tries_and_who_waits() -> None:
    server = Server()
    server.answers.clear()
    one = connector(server)
    waiting = asyncio.create_task(one.connection(PATIENCE))
    await until(lambda: server.tries == 1)
    one.close()
    with pytest.raises(BatcherClosedError, match="meanwhile"):
        await waiting
    with pytest.raises(BatcherClosedError, match="make another"):
        await one.connection(PATIENCE)
    one.wake()
    await until(lambda: one._trying is None)

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scripted_answer import START, Answer, part, settled

from pybatcher.http.middleware.stored_reply import StoredReply


class Client:
    """Reads a response, as fast as `may_read` lets it."""

    def __init__(self, response: StoredReply, *, reads: bool = True) -> None:
        self.had: list[Any] = []
        self.may_read = asyncio.Event()
        if reads:
            self.may_read.set()
        self._response, self._own = response, response.join()
        self.task = asyncio.ensure_future(response.send_to(self._own, self._send))

    async def _send(self, message: Any) -> None:
        await self.may_read.wait()
        self.had.append(message)

    def leave(self) -> None:
        self.task.cancel()
        self._response.leave(self._own)


async def test_all_clients_have_all_of_it_whenever_they_come() -> None:
    answer, response = Answer(), StoredReply(b"", lambda _: True)
    making = asyncio.ensure_future(response.make(answer, b"body"))
    first = Client(response)
    answer.tell(START, part(b"1"))
    await settled()
    second = Client(response)
    await settled()
    assert second.had == first.had == [START, part(b"1")]
    assert answer.body == b"body"
    first.leave()
    assert response.n_clients == 1
    answer.tell(part(b"2", False), None)
    await making
    await second.task
    third = Client(response)
    await third.task
    assert third.had == second.had == [START, part(b"1"), part(b"2", False)]
    assert first.had == [START, part(b"1")]
    assert response.is_worth_keeping
    third.had[0]["headers"].append("changed")  # a client's copy
    fourth = Client(response)
    await fourth.task
    assert fourth.had[0] == START


async def test_without_room_it_is_sent_once_and_as_fast_as_it_is_read() -> None:
    kept: list[int] = []

    def has_room(size: int) -> bool:
        kept.append(size)
        return len(kept) < 3

    answer, response = Answer(), StoredReply(b"", has_room)
    making = asyncio.ensure_future(response.make(answer, b""))
    slow, fast = Client(response, reads=False), Client(response)
    answer.tell(START, *[part(b"%d" % i) for i in range(50)], part(b"", False), None)
    await settled()
    assert response.is_cut
    assert answer.n_sent == 2  # the third one waits for the slow client
    assert kept[1] > len(b"0")
    assert response.n_bytes == kept[0] + kept[1]
    slow.may_read.set()
    await making
    await slow.task
    await fast.task
    assert slow.had == fast.had == [START, *[part(b"%d" % i) for i in range(50)], part(b"", False)]
    assert not response._messages
    assert not response.is_worth_keeping


async def test_who_does_not_read_and_goes_does_not_keep_it() -> None:
    answer, response = Answer(), StoredReply(b"", lambda _: False)
    making = asyncio.ensure_future(response.make(answer, b""))
    client = Client(response, reads=False)
    answer.tell(START, part(b"1"))
    await settled()
    assert answer.n_sent == 0
    client.leave()
    response.abandon()
    await making
    assert answer.was_left
    assert response.has_ended


async def test_a_defect_is_every_clients() -> None:
    answer, response = Answer(), StoredReply(b"", lambda _: True)
    answer.tell(START, ValueError("a defect"))
    await response.make(answer, b"")
    for _ in range(2):
        with pytest.raises(ValueError, match="a defect"):
            await Client(response).task
    assert not response.is_worth_keeping


@pytest.mark.parametrize(
    ("status", "headers", "kept"),
    [
        (200, [], True),
        (400, [], False),
        (429, [(b"retry-after", b"1")], False),
        (503, [], False),
        (504, [(b"x-should-retry", b"false")], True),
        (500, [(b"x-should-retry", b"false")], True),
    ],
)
async def test_what_has_run_is_kept(status: int, headers: Any, kept: bool) -> None:
    answer, response = Answer(), StoredReply(b"", lambda _: True)
    answer.tell({**START, "status": status, "headers": headers}, part(b"", False), None)
    await response.make(answer, b"")
    assert response.is_worth_keeping == kept


async def test_it_is_held_while_no_client_is_near_its_end() -> None:
    async def until_settled() -> None:
        for _ in range(5):  # a message takes a turn or two
            await settled()

    answer, response = Answer(), StoredReply(b"", lambda _: True)
    client = Client(response, reads=False)
    making = asyncio.ensure_future(response.make(answer, b"body"))
    backpressure = response._backpressure
    answer.tell(START, *[part(b"1")] * 15)
    await until_settled()
    assert not backpressure.is_paused
    answer.tell(part(b"2"))
    await until_settled()
    assert backpressure.is_paused
    client.may_read.set()
    await until_settled()
    assert not backpressure.is_paused
    client.leave()
    assert backpressure.is_paused
    other = Client(response, reads=False)
    assert backpressure.is_paused  # it is a client, but has not come so far yet
    other.may_read.set()
    await until_settled()
    assert not backpressure.is_paused
    answer.tell(part(b"3", False), None)
    await making
    other.leave()
    assert not backpressure.is_paused

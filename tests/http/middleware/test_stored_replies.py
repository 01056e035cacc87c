from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from scripted_answer import START, Answer, part, settled

from pybatcher.http.base.connection import until_gone
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.middleware.stored_replies import KeepLimits, StoredReplies
from pybatcher.http.middleware.stored_reply import StoredReply

SIZE = 320  # of a message without a body, as it is counted


def begun(kept: StoredReplies, key: str) -> tuple[Answer, StoredReply]:
    answer = Answer()
    return answer, kept.begin(key, b"request", answer, b"")


async def ended(kept: StoredReplies, key: str, body: bytes = b"") -> StoredReply:
    answer, response = begun(kept, key)
    client = kept.join(response)
    answer.tell(START, part(body, False), None)
    await settled()
    kept.leave(key, response, client)
    return response


async def test_a_key_is_of_one_request() -> None:
    kept = StoredReplies(KeepLimits())
    assert kept.find("a", b"request") is None
    response = await ended(kept, "a")
    assert kept.find("a", b"request") is response
    with pytest.raises(HttpError) as raised:
        kept.find("a", b"another")
    assert raised.value.status == 422


async def test_who_comes_back_in_time_finds_it_going_on() -> None:
    kept = StoredReplies(KeepLimits(grace=0.05))
    answer, response = begun(kept, "a")
    kept.leave("a", response, kept.join(response))
    found = kept.find("a", b"request")
    assert found is response
    client = kept.join(response)
    await asyncio.sleep(0.1)  # longer than it would have gone on alone
    assert not answer.was_left
    kept.leave("a", response, client)
    while not answer.was_left:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert kept.find("a", b"request") is None  # the next one begins again
    await settled()
    assert not kept._tasks
    assert not kept._timers


async def test_few_go_on_alone() -> None:
    kept = StoredReplies(KeepLimits(grace=1e6, most_alone=2))
    answers = []
    for key in ("a", "b", "c"):
        answer, response = begun(kept, key)
        answers.append(answer)
        client, other = kept.join(response), kept.join(response)
        kept.leave(key, response, client)
        await settled()
        kept.leave(key, response, other)
        await settled()
    assert [answer.was_left for answer in answers] == [False, False, True]
    answers[0].tell(START, None)
    await settled()
    assert kept.find("a", b"request") is not None
    for _, handle in list(kept._timers.items()):
        handle.cancel()
    for task in kept._tasks.values():
        task.cancel()


async def test_what_an_abandoned_one_still_says_takes_no_room() -> None:
    """As the response to a client that has gone, which the application sends all the same."""

    async def says_goodbye(receive: Any, send: Any) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        await send({**START, "status": 499})
        await send(part(b"", False))

    kept = StoredReplies(KeepLimits(most_alone=0))
    response = kept.begin("a", b"request", says_goodbye, b"")
    kept.leave("a", response, kept.join(response))
    await settled()
    assert response.has_ended
    assert response.n_bytes == kept._n_bytes == 0


async def test_one_that_has_ended_is_forgotten_in_time() -> None:
    kept = StoredReplies(KeepLimits(keep=0.02))
    await ended(kept, "a")
    assert kept.find("a", b"request")
    while kept.find("a", b"request"):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert kept._n_bytes == 0


async def test_the_oldest_make_room() -> None:
    kept = StoredReplies(KeepLimits(most_kept=2))
    for key in ("a", "b", "c"):
        await ended(kept, key)
    assert [key for key in "abc" if kept.find(key, b"request")] == ["b", "c"]

    kept = StoredReplies(KeepLimits(most_bytes=8 * SIZE))
    for key in ("a", "b", "c", "d", "e"):  # of two messages each
        await ended(kept, key)
    assert [key for key in "abcde" if kept.find(key, b"request")] == ["b", "c", "d", "e"]
    assert kept._n_bytes == 8 * SIZE

    long = await ended(kept, "f", b"x" * SIZE)  # more than a quarter
    assert long.is_cut
    assert kept.find("f", b"request") is None
    assert kept._n_bytes <= 8 * SIZE


async def test_an_evicted_response_is_freed_without_a_collection() -> None:
    """The collector runs rarely in a server, and each response may have megabytes."""

    async def sent(_: Any) -> None:
        pass

    kept = StoredReplies(KeepLimits(most_kept=2))
    gone: list[weakref.ref[StoredReply]] = []
    gc.collect()
    gc.disable()
    try:
        for i in range(5):
            answer, response = begun(kept, str(i))
            client = kept.join(response)
            answer.tell(START, *[part(b"x" * 1000, True)] * 20)  # it is paused: nobody reads it
            await settled()
            answer.tell(part(b"", False), None)
            await settled()
            await response.send_to(client, sent)
            kept.leave(str(i), response, client)
            gone.append(weakref.ref(response))
            del answer, response, client
            await settled()
        assert [one() is None for one in gone] == [True] * 3 + [False] * 2
    finally:
        gc.enable()


@pytest.mark.parametrize("has_client", [True, False])
async def test_a_response_that_failed_is_freed_without_a_collection(has_client: bool) -> None:
    kept = StoredReplies(KeepLimits())

    async def sent(_: Any) -> None:
        pass

    async def received() -> Any:
        await asyncio.Event().wait()

    async def answer(receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        raise ValueError("an error of a test")

    async def fail() -> weakref.ref[StoredReply]:
        response = kept.begin("a", b"request", answer, b"")
        client = kept.join(response)
        if not has_client:
            kept.leave("a", response, client)
        else:
            try:
                await until_gone(received, response.send_to(client, sent))
            except ValueError:
                kept.leave("a", response, client)
            else:
                raise AssertionError("no error was raised")
        await settled()
        return weakref.ref(response)

    gc.collect()
    gc.disable()
    try:
        gone = await fail()
        await settled()
        assert gone() is None
    finally:
        gc.enable()
    assert kept.find("a", b"request") is None
    assert kept._n_bytes == 0


async def test_those_in_flight_do_not_make_room() -> None:
    kept = StoredReplies(KeepLimits(most_bytes=8 * SIZE))
    clients: list[Any] = []
    for key in ("a", "b", "c", "d", "e"):
        answer, response = begun(kept, key)
        clients.append((answer, response, kept.join(response)))
        answer.tell(START, part(b""))
        await settled()
    assert [response.is_cut for _, response, _ in clients] == [False] * 4 + [True]
    with pytest.raises(HttpError) as raised:
        kept.find("e", b"request")
    assert (raised.value.status, raised.value.headers["x-should-retry"]) == (409, "false")
    for key, (answer, response, client) in zip("abcde", clients, strict=True):
        kept.leave(key, response, client)
        response.abandon()
        await settled()
        assert answer.was_left
    assert not kept._tasks


async def test_who_was_refused_may_ask_again() -> None:
    kept = StoredReplies(KeepLimits())
    answer, response = begun(kept, "a")
    client = kept.join(response)
    answer.tell({**START, "status": 429}, part(b"", False), None)
    await settled()
    kept.leave("a", response, client)
    assert kept.find("a", b"request") is None
    assert kept._n_bytes == 0

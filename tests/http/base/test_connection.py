from __future__ import annotations

import asyncio
import gc
import gzip
import json
import threading
import time
import zlib
from functools import partial
from itertools import pairwise, repeat
from typing import Any

import pytest
from starlette.requests import Request

from pybatcher.http.base import connection
from pybatcher.http.base.body_room import BodyRoom
from pybatcher.http.base.connection import read_body
from pybatcher.http.base.http_error import HttpError
from pybatcher.web import ClientGoneError


def request(*messages: Any, **headers: str) -> Request:
    """A request that says this, and nothing after it."""
    waiting = list(messages)

    async def receive() -> Any:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": named}, receive)


def part(data: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


GONE = {"type": "http.disconnect"}
ROOM = BodyRoom(2**20)


async def test_a_body_is_an_object_within_its_limit() -> None:
    assert await read_body(request(part(b'{"a":', True), part(b" 1}")), 20, ROOM) == {"a": 1}
    for data, status in ((b"[]", 400), (b"{", 400), (b"x" * 30, 413)):
        with pytest.raises(HttpError) as raised:
            await read_body(request(part(data)), 20, ROOM)
        assert raised.value.status == status
    with pytest.raises(HttpError) as raised:  # before anything of it is read
        await read_body(request(content_length="21"), 20, ROOM)
    assert raised.value.status == 413
    with pytest.raises(ClientGoneError):
        await read_body(request(part(b"{", True), GONE), 20, ROOM)


async def test_a_body_takes_room_until_it_is_parsed_or_given_up() -> None:
    room, large = BodyRoom(2**18), b'{"a":"' + b"x" * 2**18
    parts, is_read, goes_on = [part(b'"}'), part(large, True)], asyncio.Event(), asyncio.Event()

    async def more() -> Any:
        if len(parts) == 1:
            is_read.set()
            await goes_on.wait()
        return parts.pop()

    half = Request({"type": "http", "method": "POST", "headers": []}, more)
    reading = asyncio.ensure_future(read_body(half, 2**20, room))
    await is_read.wait()
    with pytest.raises(HttpError) as raised:
        await read_body(request(part(large, True)), 2**20, room)
    assert (raised.value.status, raised.value.headers["retry-after"]) == (503, "1")
    assert await read_body(request(part(b"{}" + b" " * (2**16 - 2))), 2**20, room) == {}
    goes_on.set()
    assert len((await reading)["a"]) == 2**18
    assert room.n_taken == 0
    for ends in (GONE, part(b"!"), part(b"x" * 2**20, True)):
        with pytest.raises((HttpError, ClientGoneError)):
            await read_body(request(part(large, True), ends), 2**20, room)
        assert room.n_taken == 0


async def test_large_bodies_are_parsed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    n_now, most, parse = 0, 0, connection._parsed

    def parsing(data: bytes, room: BodyRoom) -> Any:
        nonlocal n_now, most
        n_now += 1
        most = max(most, n_now)
        time.sleep(0.01)
        n_now -= 1
        return parse(data, room)

    monkeypatch.setattr(connection, "_parsed", parsing)
    room, large = BodyRoom(2**24), b'{"a":"' + b"x" * 2**17 + b'"}'
    await asyncio.gather(*(read_body(request(part(large)), 2**18, room) for _ in range(8)))
    assert most == 1


@pytest.mark.parametrize("value", [b"123456,", b"0.4375,", b"{},"])
def test_other_threads_run_while_a_large_body_is_parsed(value: bytes) -> None:
    """Times are of the process, so that other processes do not matter."""
    data = b'{"a":[' + value * 200_000 + b"1]}"
    times, is_parsed = [time.process_time()], threading.Event()

    def run() -> None:
        while not is_parsed.is_set():
            times.append(time.process_time())

    thread = threading.Thread(target=run)
    thread.start()
    begin = time.process_time()
    body = connection._parsed(data)
    end = time.process_time()
    is_parsed.set()
    thread.join()
    assert body == json.loads(data)
    assert max(b - a for a, b in pairwise(times)) < (end - begin) / 3


def test_other_threads_run_while_a_large_image_is_parsed() -> None:
    """Times are of the process, so that other processes do not matter."""
    data = b'{"a":"data:image/png;base64,' + b"iVBO" * 2**22 + b'"}'
    times, is_parsed = [time.process_time()], threading.Event()

    def run() -> None:
        while not is_parsed.is_set():
            times.append(time.process_time())

    thread = threading.Thread(target=run)
    thread.start()
    begin = time.process_time()
    body = connection._parsed(data, BodyRoom(2**26))
    end = time.process_time()
    is_parsed.set()
    thread.join()
    assert len(body["a"]) == 2**24 + 22
    # One thread that parses it at once holds the others up for nearly all of the time.
    assert max(b - a for a, b in pairwise(times)) < (end - begin) * 2 / 3


LONG = "data:image/png;base64," + "Ab0/" * 2**15
NEAR = "x" * (2**15 - 1)  # shorter than a window of the search


@pytest.mark.parametrize(
    "value",
    [
        {"a": LONG},
        {"a": [LONG, [LONG], {"b": [[LONG]]}, "", 1, None], "c": LONG},
        {LONG: LONG, "a": {LONG + "=": 1}},
        {"a": LONG + " ", "b": LONG + "\n", "c": LONG + "ä", "d": '"' + LONG, "e": "\\" + LONG},
        {"a": LONG + '"', "b": LONG + '"' + LONG, "c": '\\"' + LONG},
        {"a": [1234567] * 20_000, "b": LONG, "c": [1.5] * 30_000},
        {"a": NEAR, "b": "x" * 2**15, "c": "x" * 2**16, "d": "x" * (2**16 - 1)},
    ],
)
def test_long_texts_are_read_as_they_are(value: Any) -> None:
    for made in (json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False)):
        assert connection._parsed(made.encode(), BodyRoom(2**26)) == json.loads(made)


@pytest.mark.parametrize(
    "data",
    [
        f'{{"a": "{LONG}',
        f'{{"a": {LONG}"}}',
        f'{{"a": "b"{LONG}"c"}}',
        f'{{"a": "{LONG}" 1}}',
        f'{{"a": "{LONG}"',
        f'{{"a": "{LONG}\n"}}',
        f'"{LONG}" "{LONG}"',
    ],
)
def test_long_texts_do_not_repair_a_body(data: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of the parser
        connection._parsed(data.encode(), BodyRoom(2**26))


async def test_a_body_with_too_many_commas_is_dropped_while_it_is_received() -> None:
    seen: list[int] = []

    async def check(n_commas: int) -> None:
        seen.append(n_commas)
        if n_commas > 100:
            raise HttpError(400, "too many", param="tokens")

    room, more = BodyRoom(2**24), part(b"1," * 60, True)
    with pytest.raises(HttpError, match="too many"):
        await read_body(request(more, more, more, part(b"1]")), 2**20, room, check)
    assert seen == [60, 120]
    with pytest.raises(HttpError, match="more than 200 bytes"):
        await read_body(request(more, more, more, part(b"1]")), 200, room, check)
    body = gzip.compress(b'{"a": [' + b"1," * 101 + b"1]}")
    with pytest.raises(HttpError, match="too many"):
        await read_body(request(part(body), content_encoding="gzip"), 2**20, room, check)
    assert seen[-1] == 101
    assert room.n_taken == 0


async def test_a_body_without_memory_for_its_values_is_refused_before_it_is_parsed() -> None:
    numbers = b'{"a": [' + b"1," * 99_999 + b"1]}"
    needed = len(numbers) + 48 * 100_002
    given: tuple[tuple[int | None, bool], ...] = (
        (None, True),
        (needed + 2**22, True),
        (needed + 2**22 - 1, False),
    )
    for free, is_read in given:
        room = BodyRoom(2**24, partial(next, repeat(free)))
        if is_read:
            assert len((await read_body(request(part(numbers)), 2**20, room))["a"]) == 100_000
            continue
        with pytest.raises(
            HttpError, match=rf"takes {needed} bytes.* has {needed - 1} left"
        ) as told:
            await read_body(request(part(numbers)), 2**20, room)
        assert (told.value.status, told.value.code) == (503, "overloaded")
        assert room.n_taken == 0


@pytest.mark.parametrize("size", [2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20])
async def test_a_compressed_body_is_decoded_in_parts(size: int) -> None:
    data = b'{"a": "' + b"x" * (size - 9) + b'"}'
    assert len(data) == size
    body = await read_body(
        request(part(gzip.compress(data)), content_encoding="gzip"), 2**23, BodyRoom(2**24)
    )
    assert len(body["a"]) == size - 9


async def test_a_compressed_body_beyond_the_memory_is_refused_while_it_is_decoded() -> None:
    left = iter([2**23] * 3 + [0] * 99)
    room = BodyRoom(2**24, lambda: next(left))
    bomb = gzip.compress(b" " * 2**24)
    with pytest.raises(HttpError, match=r"the body takes 5242880 bytes of memory") as told:
        await read_body(request(part(bomb), content_encoding="gzip"), 2**24, room)
    assert (told.value.status, room.n_taken) == (503, 0)


async def test_a_body_that_outgrows_the_memory_is_refused_while_it_is_received() -> None:
    room, n_read = BodyRoom(2**24, lambda: 2**23), 0

    async def receive() -> Any:
        nonlocal n_read
        n_read += 1
        return part(b" " * 2**19, n_read < 20)

    with pytest.raises(HttpError, match="bytes of memory") as told:
        await connection.read_bytes({}, receive, 2**24, room.one())
    assert told.value.status == 503
    assert n_read == 9  # beyond 4 MiB, another copy leaves too little


@pytest.mark.parametrize(
    ("body", "is_taken"),
    [
        (b'{"a": [' + b"[]," * 500_000 + b"[]]}", True),
        (b'{"a": [' + b"{}," * 600_000 + b"{}]}", False),
        (b'{"a": [' + b"1," * 500_000 + b"1]}", True),
        (b'{"a": [' + b"1," * 2**20 + b"1]}", False),
        (b'{"a": {' + b",".join(b'"%d": 1' % i for i in range(500_000)) + b"}}", True),
        (b'{"a": {' + b",".join(b'"%d": 1' % i for i in range(600_000)) + b"}}", False),
    ],
)
async def test_a_body_has_so_many_values(body: bytes, is_taken: bool) -> None:
    room = BodyRoom(2**25)
    asked = request(part(body))
    if is_taken:
        assert list(await read_body(asked, 2**24, room)) == ["a"]
    else:
        with pytest.raises(HttpError, match="more than") as caught:
            await read_body(asked, 2**24, room)
        assert caught.value.status == 413
    assert gc.isenabled()


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZIP", "deflate", "identity", ""])
async def test_a_compressed_body_is_read(coding: str) -> None:
    data = b'{"a": 1}'
    if "gzip" in coding.lower():
        data = gzip.compress(data)
    elif coding == "deflate":
        data = zlib.compress(data)
    found = await read_body(request(part(data), content_encoding=coding), 100, ROOM)
    assert found == {"a": 1}


@pytest.mark.parametrize(
    ("coding", "data", "status"),
    [
        ("br", b"x", 415),
        ("zstd", b"x", 415),
        ("gzip, gzip", b"x", 415),
        ("gzip", b"{}", 400),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-1], 400),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"x", 400),
        ("gzip", gzip.compress(b" " * 10**6, mtime=0), 413),
    ],
)
async def test_a_compressed_body_that_cannot_be_read(coding: str, data: bytes, status: int) -> None:
    with pytest.raises(HttpError) as raised:
        await read_body(request(part(data), content_encoding=coding), 10**5, ROOM)
    assert raised.value.status == status
    if status != 413:
        assert raised.value.param == "content-encoding"
    assert ("accept-encoding" in raised.value.headers) == (status == 415)

"""Images of requests: data URIs and base64 become bytes; anything else is refused by name."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
import time
from itertools import pairwise
from typing import Any

import pytest
from starlette.requests import Request

from pybatcher.http.base import image_sources
from pybatcher.http.base.body_room import BodyRoom
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.base.image_hosts import ImageHosts
from pybatcher.http.base.image_sources import (
    ImageSource,
    image_part,
    load_images,
    read_image_url,
    read_media_type,
)

WHERE = "messages[0].content[1].image_url.url"
ROOM = BodyRoom(2**26)


def uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


async def loaded(*texts: str, room: BodyRoom = ROOM) -> list[Any]:
    """Return the images of a message with these data URIs."""
    parts: list[Any] = [
        image_part(read_image_url(one, f"field {i}")) for i, one in enumerate(texts)
    ]
    messages = [{"role": "system", "content": "Hi"}, {"role": "user", "content": parts}]
    names = await load_images(Request({"type": "http"}), messages, ImageHosts(), room)
    assert names == {f"messages[1].content[{i}].image": f"field {i}" for i in range(len(texts))}
    return [part["image"] for part in parts]


@pytest.mark.parametrize("size", [1, 2, 3, 12287, 12288, 3 * 2**16, 2**20 + 1])
async def test_a_data_uri_becomes_its_bytes(size: int) -> None:
    data = os.urandom(size)
    assert await loaded(uri(data), uri(b"x", "IMAGE/JPEG")) == [data, b"x"]


URLS: list[Any] = [
    None,
    5,
    b"data:image/png;base64,AAAA",
    ["data:image/png;base64,AAAA"],
    {},
    "",
    "x",
    base64.b64encode(b"bare").decode(),
    "http://example.org/a.png",
    "ftp://example.org/a.png",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "javascript:alert(1)",
    "blob:https://example.org/1",
    " data:image/png;base64,AAAA",
    "data:image/png,AAAA",
    "data:image/png;charset=utf-8;base64,AAAA",
    "data:image/png;base64;base64,AAAA",
    "data:;base64,AAAA",
    "data:text/html;base64,AAAA",
    "data:image/svg+xml;base64,AAAA",
    "data:image/svg+xml;utf8,<svg/>",
    "data:application/octet-stream;base64,AAAA",
    "data:image/;base64,AAAA",
    "data:image/" + "p" * 100_000 + ";base64,AAAA",
    "data:" + "a" * 1_000_000,
    "\ud800",
    "data:image/png\0;base64,AAAA",
]


@pytest.mark.parametrize("value", URLS, ids=[f"{i}" for i in range(len(URLS))])
def test_other_urls_are_refused_by_name(value: Any) -> None:
    with pytest.raises(HttpError) as raised:
        read_image_url(value, WHERE)
    assert (raised.value.status, raised.value.param) == (400, WHERE)
    assert raised.value.message.startswith(f"{WHERE} is ")
    assert len(raised.value.message) < 400


def test_media_types_are_those_of_images() -> None:
    for kind in ("image/png", "image/jpeg", "image/x-icon", "Image/WebP"):
        read_media_type(kind, WHERE)
    for other in (None, 5, "", "png", "text/png", "image/svg+xml", "image/*", "image/png;q=1"):
        with pytest.raises(HttpError) as raised:
            read_media_type(other, WHERE)
        assert raised.value.param == WHERE


BASE64 = [
    "",
    "A",
    "AA",
    "AAA",
    "AA=",
    "A===",
    "AA==AAAA",
    "AAAA====",
    "A A A A ",
    "AAAA\n",
    "AA-_",
    "äääA",
    "AAA\0",
    "%41%41%41%41",
    "=" * 4,
    "A" * (2**18 - 2) + "==" + "AAAA",
    "A" * 2**20 + "!",
    "AA\ud800A",
]


@pytest.mark.parametrize("text", BASE64, ids=[f"{i}" for i in range(len(BASE64))])
async def test_bad_base64_is_refused_by_name(text: str) -> None:
    with pytest.raises(HttpError, match=r"^field 1 is .*base64") as raised:
        await loaded(uri(b"good"), f"data:image/png;base64,{text}")
    assert (raised.value.status, raised.value.param) == (400, "field 1")
    assert len(raised.value.message) < 400


def test_details_are_checked() -> None:
    source = ImageSource("a", "")
    assert image_part(source) == {"type": "image", "image": source}
    for detail in ("low", "high", "auto"):
        assert image_part(source, detail)["detail"] == detail
    for odd in ("", "Low", "medium", 1, True, [], {"a": 1}, "x" * 10**6, "\ud800"):
        with pytest.raises(HttpError) as raised:
            image_part(source, odd, "a.detail")
        assert raised.value.param == "a.detail"
        assert len(raised.value.message) < 300


async def test_an_image_without_memory_for_it_is_refused() -> None:
    free = 2**22 + 2 * 2**20
    room = BodyRoom(2**26, lambda: free)
    data = bytes(3 * 2**18)
    assert await loaded(uri(data), room=room) == [data]
    with pytest.raises(HttpError) as raised:
        await loaded(uri(data + bytes(3)), room=room)
    assert (raised.value.status, raised.value.code) == (503, "overloaded")


def test_other_threads_run_while_a_large_image_is_decoded() -> None:
    """Times are of the process, so that other processes do not matter."""
    source = read_image_url(uri(bytes(2**25)), WHERE)
    times, is_decoded = [time.process_time()], threading.Event()

    def run() -> None:
        while not is_decoded.is_set():
            times.append(time.process_time())

    thread = threading.Thread(target=run)
    thread.start()
    begin = time.process_time()
    assert image_sources._decoded(source) == bytes(2**25)
    end = time.process_time()
    is_decoded.set()
    thread.join()
    assert max(b - a for a, b in pairwise(times)) < (end - begin) / 3


async def test_only_large_images_are_decoded_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    decode = image_sources._decoded

    def decoding(source: ImageSource) -> bytes:
        threads.append(threading.get_ident())
        return decode(source)

    monkeypatch.setattr(image_sources, "_decoded", decoding)
    await loaded(uri(bytes(2**12)), uri(bytes(2**16)))
    assert [one == threading.get_ident() for one in threads] == [True, False]


async def test_ten_thousand_images_do_not_hold_the_loop() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    images = await loaded(*[uri(b"x")] * 10_000)
    task.cancel()
    assert images == [b"x"] * 10_000
    assert turns > 50

"""Images of chats over a connection: sent once, again over the next one, and after a loss there."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batcher_helpers import until
from session_helpers import connected

from pybatcher.calls.call import Call, CallService
from pybatcher.calls.chat_settings import ChatSettings
from pybatcher.calls.completion import Completion, Timeline, Usage
from pybatcher.calls.questions import Tokenize
from pybatcher.calls.reply import Reply
from pybatcher.errors import InvalidRequestError, QueueFullError
from pybatcher.sidecar.protocol.limits import Limits
from pybatcher.sidecar.protocol.wire_images import unpacked
from pybatcher.sidecar.replay.link import Link
from pybatcher.sidecar.replay.pending_calls import PendingCalls
from pybatcher.sidecar.replay.remote_service import RemoteService
from pybatcher.sidecar.session.session import ServerSession
from pybatcher.testing import fake_batcher

SMALL, LARGE = b"\x89PNG small", os.urandom(2**20)
PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
SHOWS = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{% if part.type == 'image' %}"
    "<|image|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}<assistant>"
)
LIMITS = Limits(max_frame=2**16, image_bytes=2**21)


class Seen(CallService):
    """Answers every call at once, if it may, and keeps what it has got."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.answers = True

    async def submit(self, call: Call, reply: Reply) -> range:
        self.calls.append(unpacked(call.content))
        reply.expect(1)
        if self.answers:
            times = Timeline(0.0, 0.0, 0.0, 0.0, (0.0,))
            reply.finish(Completion("ok", (1,), "stop", Usage(3, 0, 1), times))
        return range(1, 2)

    def cancel(self, request_ids: range) -> None:
        pass

    async def ask(self, question: Any) -> Any:
        assert isinstance(question, Tokenize)
        self.calls.append(unpacked(question.content))
        return (1, 2, 3)

    def attach(self, handler: Any) -> Callable[[], None]:
        return lambda: None


class Counted(Link):
    """A link that counts the bytes of images."""

    n_bytes = 0

    def notify(self, method: str, params: list[Any]) -> None:
        if method == "image":
            self.n_bytes += len(params[3])
        super().notify(method, params)


@asynccontextmanager
async def linked(remote: RemoteService, service: CallService) -> AsyncIterator[Counted]:
    """Connect a remote with a session of the service. At the end the connection is lost."""
    ours, theirs = socket.socketpair()
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    session = ServerSession(service, limits=LIMITS, on_end=lambda _: ended.set())
    link = Counted(peer="test", limits=LIMITS, on_lost=remote.link_lost)
    await loop.create_connection(lambda: session, sock=theirs)
    await loop.create_connection(lambda: link, sock=ours)
    remote.link_made(link)
    try:
        yield link
    finally:
        session.abort()
        await ended.wait()


def a_remote(**more: Any) -> RemoteService:
    return RemoteService(PendingCalls(replays=True, **more))


def a_chat(*images: Any) -> Any:
    parts = [{"type": "image", "image": one} for one in images]
    return [{"role": "user", "content": [{"type": "text", "text": "a"}, *parts]}]


def a_call(*images: Any) -> Call:
    return Call(content=a_chat(*images), chat=ChatSettings())


async def chat(remote: RemoteService, *images: Any) -> str:
    reply = Reply(streams=False)
    await remote.submit(a_call(*images), reply)
    while not reply.ended:
        await reply.wait()
    return str(reply.result().text)


def images_of(content: Any) -> list[Any]:
    return [part["image"] for part in content[0]["content"][1:]]


async def test_an_image_crosses_a_connection_once() -> None:
    remote, seen = a_remote(), Seen()
    async with linked(remote, seen) as link:
        for _ in range(3):
            assert await chat(remote, LARGE, SMALL, LARGE, PIXELS) == "ok"
        asked = Tokenize(content=a_chat(SMALL), chat=ChatSettings())
        assert await remote.ask(asked) == (1, 2, 3)
        assert link.n_bytes == len(LARGE) + len(SMALL) + PIXELS.size
    for content in seen.calls[:3]:
        *files, pixels = images_of(content)
        assert files == [LARGE, SMALL, LARGE]
        assert np.array_equal(pixels, PIXELS)
    assert images_of(seen.calls[3]) == [SMALL]


async def test_over_the_next_connection_it_is_sent_again() -> None:
    remote, seen, reply = a_remote(), Seen(), Reply(streams=False)
    seen.answers = False
    async with linked(remote, seen):
        await remote.submit(a_call(LARGE), reply)
        await until(lambda: len(seen.calls) == 1)
    assert not reply.ended
    seen.answers = True
    async with linked(remote, seen) as link:
        await reply.wait()
        assert reply.result().finish_reason == "stop"
        assert link.n_bytes == len(LARGE)
    assert images_of(seen.calls[1]) == [LARGE]
    assert remote.pending.replayed_requests == 1


async def test_an_image_that_made_room_for_others_is_sent_again() -> None:
    remote, seen = a_remote(), Seen()
    others = [os.urandom(2**19) for _ in range(4)]
    async with linked(remote, seen) as link:
        await chat(remote, LARGE, SMALL)
        for one in others:
            await chat(remote, one)
        assert await chat(remote, LARGE, SMALL) == "ok"
        assert images_of(seen.calls[-1]) == [LARGE, SMALL]
        assert link.n_bytes == 2 * (len(LARGE) + len(SMALL)) + 4 * 2**19
        assert await chat(remote, SMALL) == "ok"
    assert remote.pending.replayed_requests == 0


async def test_images_beyond_the_limit_fail_alone() -> None:
    remote, seen = a_remote(), Seen()
    async with linked(remote, seen) as link:
        with pytest.raises(InvalidRequestError, match="at most 2097152: send fewer"):
            await chat(remote, LARGE, os.urandom(2**20 + 1))
        assert link.n_bytes == 0
        assert await chat(remote, SMALL) == "ok"


async def test_the_journal_counts_the_bytes_of_images_once_for_all_samples() -> None:
    remote, seen = a_remote(most_bytes=3 * 2**20), Seen()
    call = replace(a_call(LARGE), sampling={"n": 8})
    await remote.submit(call, Reply(streams=False))
    assert 2**20 < remote.pending._bytes < 2**20 + 2**16
    await remote.submit(call, Reply(streams=False))
    with pytest.raises(QueueFullError, match="take 21"):
        await remote.submit(a_call(LARGE), Reply(streams=False))
    with pytest.raises(QueueFullError):
        await remote.ask(Tokenize(content=a_chat(LARGE), chat=ChatSettings()))
    assert seen.calls == []


async def test_damaged_and_unknown_images_over_the_wire() -> None:
    seen = Seen()
    async with connected(seen, limits=LIMITS) as (_, peer):
        part = {"type": "image", "sha256": "0" * 64}
        messages = [{"role": "user", "content": [part]}]
        for method in ("chat", "tokenize"):
            error = await peer.fail(method, messages)
            assert (error["code"], error["retryable"]) == ("unknown_image", True)
            assert error["field"] == "messages[0].content[0].sha256"
        peer.notify("image", "0" * 64, 4, 0, b"abcd")  # another digest
        peer.notify("image", 5)
        assert (await peer.fail("chat", messages))["code"] == "unknown_image"
        odd = [{"role": "user", "content": [{**part, "sha256": 5}]}]
        assert (await peer.fail("chat", odd))["code"] == "invalid_request"
        assert (await peer.ask("chat", [{"role": "user", "content": "Hi"}]))["text"] == "ok"
    assert len(seen.calls) == 1


def files_and_pixels(folder: Path) -> list[Any]:
    """Return images in all forms that `chat` takes."""
    pil = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(3).integers(0, 256, (96, 64, 4), np.uint8)
    photo = pil.fromarray(pixels[..., :3].copy())
    exif = pil.Exif()
    exif[0x0112] = 6  # turned by a quarter
    jpeg, png = io.BytesIO(), folder / "a.png"
    photo.save(jpeg, "JPEG", exif=exif)
    photo.save(png)
    uri = "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()
    arrays = [pixels, pixels[..., :3], pixels[..., 0], pixels[::2, ::-1, :3]]
    pictures = [pil.fromarray(pixels), photo.convert("P"), photo.convert("LA"), photo.convert("1")]
    return [jpeg.getvalue(), png, png.read_bytes(), uri, *arrays, *pictures]


async def test_tokens_are_those_in_process(tmp_path: Path) -> None:
    from pybatcher.sidecar.worker import _OpenedLater

    async with fake_batcher(chat_template=SHOWS) as batcher:
        service, remote = _OpenedLater(), a_remote()
        service.open(batcher._running_service())
        async with linked(remote, service):
            prompts = set()
            for value in files_and_pixels(tmp_path):
                expected = await batcher.chat(a_chat(value), seed=5, max_tokens=6)
                reply = Reply(streams=False)
                call = replace(a_call(value), sampling={"seed": 5, "max_tokens": 6})
                await remote.submit(call, reply)
                while not reply.ended:
                    await reply.wait()
                made = reply.result()
                assert made.token_ids == expected.token_ids
                assert made.usage.image_tokens == expected.usage.image_tokens > 0
                prompts.add(made.token_ids)
                asked = Tokenize(content=a_chat(value), chat=ChatSettings())
                assert await remote.ask(asked) == await batcher.tokenize(a_chat(value))
            assert len(prompts) > 5  # so that the images matter


async def test_damaged_images_are_refused_by_the_other_end() -> None:
    from pybatcher.sidecar.worker import _OpenedLater

    async with fake_batcher(chat_template=SHOWS) as batcher:
        service, remote = _OpenedLater(), a_remote()
        service.open(batcher._running_service())
        async with linked(remote, service):
            for value in (b"no image", LARGE, np.zeros((4, 4, 7), np.uint8)):
                with pytest.raises(InvalidRequestError) as raised:
                    await chat(remote, value)
                assert raised.value.field == "messages[0].content[1].image"
            assert await chat(remote, PIXELS.repeat(40, 0).repeat(40, 1))


async def test_a_stream_goes_on_with_the_same_tokens_over_another_connection() -> None:
    from pybatcher.sidecar.worker import _OpenedLater

    image = np.random.default_rng(4).integers(0, 256, (64, 64, 3), np.uint8)
    sampling: Any = {"seed": 7, "max_tokens": 60, "ignore_eos": True}
    async with fake_batcher(chat_template=SHOWS) as first:
        expected = await first.chat(a_chat(image), **sampling)
        remote, reply, service = a_remote(), Reply(streams=True), _OpenedLater()
        service.open(first._running_service())
        tokens: list[int] = []
        async with linked(remote, service):
            await remote.submit(replace(a_call(image), sampling=sampling), reply)
            while len(tokens) < 5:
                await reply.wait()
                tokens += [token for piece in reply.take_pieces() for token in piece.token_ids]
    assert not reply.ended
    # Another worker has another numbering of images.
    async with fake_batcher(chat_template=SHOWS) as second:
        await second.chat(a_chat(image[::-1]), max_tokens=1)
        service = _OpenedLater()
        service.open(second._running_service())
        async with linked(remote, service):
            while not reply.ended or reply.pieces:
                await reply.wait()
                tokens += [token for piece in reply.take_pieces() for token in piece.token_ids]
    assert tuple(tokens) == reply.result().token_ids == expected.token_ids

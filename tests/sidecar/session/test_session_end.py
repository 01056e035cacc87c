"""How a session ends: its client hangs up or breaks the protocol, or its owner has had enough."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import Any

import msgpack
import pytest
from batcher_helpers import until
from session_helpers import Peer, ServiceOf, connected

from pybatcher.calls.call import Question
from pybatcher.sidecar.protocol.connection import Limits
from pybatcher.sidecar.session.session import ServerSession
from pybatcher.testing import fake_batcher

LONG = {"max_tokens": 5000, "ignore_eos": True, "stream": True}
SHORT = {"max_tokens": 20, "ignore_eos": True}


async def test_who_hangs_up_cancels_all_it_had() -> None:
    async with fake_batcher(max_prefixes=3) as batcher:
        async with connected(ServiceOf(batcher)) as (_, other):
            going = other.request("generate", "hi", SHORT)
            async with connected(ServiceOf(batcher)) as (session, peer):
                n_tasks = len(asyncio.all_tasks())
                await peer.ask("add_prefix", "a" * 40, {"name": "a"})
                await peer.ask("watch", True)
                for method, *params in (
                    ("generate", "hi", LONG),
                    ("score", "hi", ["x" * 500] * 100),
                    ("embed", ["x" * 500] * 100),
                ):
                    peer.request(method, *params)
                await until(lambda: session.n_in_flight == 3)
                assert batcher._telemetry.has_handlers
            assert not batcher._telemetry.has_handlers
            await until(lambda: batcher.statistics().running == batcher.statistics().queued == 0)
            await until(lambda: batcher.prefixes() == ())
            await until(lambda: len(asyncio.all_tasks()) <= n_tasks)
            assert (await other.answer(going))[0] is None
        assert batcher.statistics().cancelled >= 1


async def test_what_has_ended_is_gone_at_once() -> None:
    """Its parsers take 100 KB, and thousands a second may come: none waits for the collector."""

    async def use(session: ServerSession, peer: Peer) -> weakref.ref[ServerSession]:
        await peer.ask("hello", 1, {})
        await peer.ask("watch", True)
        await peer.ask("generate", "hi", SHORT)
        peer.request("generate", "hi", LONG)
        await until(lambda: session.n_in_flight == 1)
        return weakref.ref(session)

    gc.collect()
    gc.disable()
    try:
        async with fake_batcher() as batcher:
            async with connected(ServiceOf(batcher)) as ends:
                used = await use(*ends)
                del ends
            await until(lambda: used() is None)
    finally:
        gc.enable()


async def test_who_says_no_more_hears_the_end_of_what_it_asked() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (session, peer):
        msgids = [peer.request("generate", "hi", LONG) for _ in range(3)]
        await peer.frame()
        peer.writer.write_eof()
        frames = await peer.rest()
        answers = [frame for frame in frames if frame[0] == 1]
        assert [(frame[1], frame[2]["code"]) for frame in answers] == [
            (msgid, "cancelled") for msgid in msgids
        ]
        assert session.n_in_flight == 0


@pytest.mark.parametrize("how_often", [1, 2])
async def test_prefixes_of_who_hangs_up_are_removed_as_often_as_they_were_added(
    how_often: int,
) -> None:
    async with (
        fake_batcher(max_prefixes=2) as batcher,
        connected(ServiceOf(batcher)) as (_, on),
    ):
        await on.ask("add_prefix", "a" * 40, {"name": "a", "namespace": "s"})
        async with connected(ServiceOf(batcher)) as (_, peer):
            for _ in range(how_often):
                await peer.ask("add_prefix", "a" * 40, {"name": "a", "namespace": "s"})
            await peer.ask("remove_prefix", "a", {"namespace": "s"})
            assert [info.holders for info in batcher.prefixes()] == [how_often]
            await peer.ask("add_prefix", "b" * 40)
        await until(
            lambda: [(info.name, info.holders) for info in batcher.prefixes()] == [("a", 1)]
        )


async def test_a_prefix_under_way_is_not_left_behind() -> None:
    async with fake_batcher(max_prefixes=2) as batcher:
        async with connected(ServiceOf(batcher)) as (session, peer):
            peer.request("add_prefix", "a" * 4000)
            await until(lambda: session.n_in_flight == 1)
        await until(lambda: batcher.prefixes() == ())


@pytest.mark.parametrize(
    ("data", "msgid"),
    [
        (b"\xc1", None),
        (msgpack.packb([0, 5, "generate"]), 5),
        (msgpack.packb([1, 5, None, None]), None),
        (msgpack.packb([0, 5, "generate", ["x" * 70000]])[:-9], 5),
    ],
)
async def test_who_breaks_the_protocol_is_cut_off_alone(
    data: bytes, msgid: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(max_frame=4096)
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, other):
        going = other.request("generate", "hi", SHORT)
        with caplog.at_level(logging.WARNING):
            async with connected(ServiceOf(batcher), limits=limits) as (session, peer):
                peer.request("generate", "hi", LONG)
                peer.writer.write(data)
                peer.request("generate", "hi", LONG)
                frames = await peer.rest()
                assert session.n_in_flight == 0
        answers = [frame[1] for frame in frames if frame[0] == 1]
        assert answers == ([] if msgid is None else [msgid])
        assert (await other.answer(going))[0] is None
        await until(lambda: batcher.statistics().running == 0)
    (record,) = caplog.records
    assert "is cut off: " in record.getMessage()


async def test_a_session_that_is_to_close_finishes_what_there_is() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (session, peer):
        going = peer.request("generate", "hi", {**LONG, "max_tokens": 100})
        await peer.frame()
        session.close_soon()
        error = await peer.fail("generate", "hi", SHORT)
        assert (error["code"], error["retryable"]) == ("shutting_down", True)
        assert (await peer.fail("score", "a", ["b"]))["code"] == "shutting_down"
        assert (await peer.ask("health"))["ok"] is True
        assert await peer.ask("statistics")
        assert await peer.ask("cancel", "nothing") is False
        error, result = await peer.answer(going)
        assert error is None
        assert len(result["token_ids"]) == 100
        frames = await peer.rest()
        assert [frame for frame in frames if frame[1] != "delta"] == []


async def test_an_idle_session_that_is_to_close_closes() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (session, peer):
        await peer.ask("health")
        session.close_soon()
        assert await peer.rest() == []


async def test_an_aborted_session_leaves_nothing() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (session, peer):
        peer.request("generate", "hi", LONG)
        await peer.frame()
        session.abort()
        assert session.n_in_flight == 0
        session.notify("news", [])
        assert all(frame[0] == 2 for frame in await peer.rest())
        await until(lambda: batcher.statistics().cancelled == 1)


async def test_who_is_not_admitted_hears_why() -> None:
    asked: list[Any] = []

    def admit(session: object, transport: asyncio.BaseTransport) -> str | None:
        asked.append(transport.get_extra_info("socket"))
        return "no room" if len(asked) == 1 else None

    async with fake_batcher() as batcher:
        async with connected(ServiceOf(batcher), admit=admit) as (_, peer):
            assert await peer.rest() == [[2, "refused", ["no room"]]]
        async with connected(ServiceOf(batcher), admit=admit) as (_, peer):
            assert (await peer.ask("health"))["ok"] is True
    assert None not in asked


async def test_a_client_that_does_not_read_its_last_answers_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Wordy(ServiceOf):
        n_asked = 0

        async def ask(self, question: Question[Any]) -> Any:
            self.n_asked += 1
            return "x" * 60000

    monkeypatch.setattr("pybatcher.sidecar.session.session._LAST_READ", 0.05)
    async with fake_batcher() as batcher:
        backing = Wordy(batcher)
        async with connected(backing) as (session, peer):
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            n_asked = 0
            while session.may_send:  # and reads: so it hears of the end
                peer.request("detokenize", [1])
                n_asked += 1
                await until(lambda: backing.n_asked == n_asked)  # noqa: B023
            peer.writer.write_eof()
            await until(lambda: session.peer == "a client")  # the connection is gone

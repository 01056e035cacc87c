"""What has one answer: as the batcher gives it."""

from __future__ import annotations

import threading
from dataclasses import asdict

from batcher_helpers import PATIENCE, until, wait_for
from session_helpers import ServiceOf, connected

from pybatcher.sidecar.protocol import wire
from pybatcher.testing import FakeEngine, fake_batcher

CHAT = [{"role": "user", "content": "hi"}]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


async def test_scores_and_vectors() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        scores = await peer.ask("score", "a", ["b", [5, 6]], {"priority": 3})
        assert wire.scores_from_wire(scores) == await batcher.score("a", ["b", [5, 6]])
        vectors = await peer.ask("embed", ["a", [5, 6]], {"pooling": "mean", "timeout_ms": 60000})
        for got, expected in zip(
            wire.embeddings_from_wire(vectors),
            await batcher.embed(["a", [5, 6]], pooling="mean"),
            strict=True,
        ):
            assert got.vector.tobytes() == expected.vector.tobytes()
            assert got.prompt_tokens == expected.prompt_tokens
        assert vectors["usage"]["prompt_tokens"] == 4


async def test_tokens() -> None:
    async with (
        fake_batcher(chat_template=TEMPLATE) as batcher,
        connected(ServiceOf(batcher)) as (_, peer),
    ):
        tokens = await peer.ask("tokenize", "abc")
        assert tuple(tokens) == await batcher.tokenize("abc")
        assert await peer.ask("detokenize", tokens) == await batcher.detokenize(tokens)
        chat = await peer.ask("tokenize", CHAT)
        assert tuple(chat) == await batcher.tokenize(CHAT)


async def test_prefixes() -> None:
    async with (
        fake_batcher(max_prefixes=2) as batcher,
        connected(ServiceOf(batcher)) as (_, peer),
    ):
        added = wire.prefix_info_from_wire(
            await peer.ask("add_prefix", "a" * 40, {"name": "a", "namespace": "s"})
        )
        assert batcher.prefixes() == (added,)
        (told,) = await peer.ask("prefixes")
        assert wire.prefix_info_from_wire(told) == added
        await peer.ask("remove_prefix", "a", {"namespace": "s"})
        assert batcher.prefixes() == ()


async def test_a_prefix_that_is_late_is_not_kept() -> None:
    go_on = threading.Event()
    engine = FakeEngine(before_step=lambda plan: wait_for(go_on))
    async with (
        fake_batcher(engine, max_prefixes=2) as batcher,
        connected(ServiceOf(batcher)) as (_, peer),
    ):
        try:
            error = await peer.fail("add_prefix", "a" * 40, {"name": "a", "timeout_ms": 20})
        finally:
            go_on.set()
        assert error["code"] == "deadline_exceeded"
        await until(lambda: batcher.prefixes() == ())
        again = await peer.ask("add_prefix", "b" * 50, {"name": "a", "timeout_ms": 1000 * PATIENCE})
        assert (again["name"], again["holders"]) == ("a", 1)


async def test_how_it_is_doing() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        await peer.ask("generate", "hi", {"max_tokens": 2})
        own = asdict(batcher.statistics())
        told = wire.statistics_from_wire(await peer.ask("statistics"))
        assert own.items() <= asdict(told).items()
        assert wire.health_from_wire(await peer.ask("health")) == batcher.health()


async def test_events_come_as_long_as_they_are_wanted() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        heard: list[object] = []
        batcher.attach(heard.append)
        for _ in range(2):  # twice is as once
            assert await peer.ask("watch", True) is True
        await peer.ask("generate", "hi", {"max_tokens": 3})
        await peer.ask("health")
        told = [wire.event_from_wire(params) for params in peer.notifications("event")]
        assert told == heard
        assert len(told) >= 4
        assert await peer.ask("watch", False) is False
        await peer.ask("generate", "hi", {"max_tokens": 3})
        await peer.ask("health")
        assert peer.notifications("event") == []
        assert (await peer.fail("watch"))["code"] == "invalid_request"

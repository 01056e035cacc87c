"""A backing over a batcher of this process: the same calls, and what it says of itself."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from pybatcher import BatcherClosedError, InvalidRequestError
from pybatcher.calls.call import Call, CallOptions
from pybatcher.calls.stream import Reply
from pybatcher.sidecar.session.service import BatcherService
from pybatcher.testing import fake_batcher

NOTHING = CallOptions(priority=0, timeout=None, namespace=None)


async def test_a_call_is_what_the_batcher_would_have_made_of_it() -> None:
    async with fake_batcher() as batcher:
        expected = await batcher.generate("hi", max_tokens=4, ignore_eos=True)
        backing, reply = BatcherService(batcher), Reply(streams=True)
        asked: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True}
        call = Call(
            content="hi", params=None, sampling=asked, priority=0, timeout=None, namespace=None
        )
        await backing.submit(call, reply)
        while not reply.ended:
            await reply.wait()
        assert reply.result().token_ids == expected.token_ids
        assert "".join(map(str, reply.pieces)) == expected.text


async def test_the_other_calls_are_the_batchers_own() -> None:
    async with fake_batcher(max_prefixes=2) as batcher:
        backing = BatcherService(batcher)
        assert await backing.score("a", ["b"], NOTHING) == await batcher.score("a", ["b"])
        (mine,), (its,) = await backing.embed(["a"], "last", NOTHING), await batcher.embed(["a"])
        assert mine.vector.tobytes() == its.vector.tobytes()
        tokens = await backing.tokenize("abc", False)
        assert tokens == await batcher.tokenize("abc")
        assert await backing.detokenize(tokens) == await batcher.detokenize(tokens)
        added = await backing.add_prefix("a" * 40, "a", None)
        assert await backing.prefixes() == batcher.prefixes() == (added,)
        await backing.remove_prefix("a", None)
        assert await backing.prefixes() == ()
        assert await backing.statistics() == batcher.statistics()
        assert await backing.health() == batcher.health()


async def test_a_cancelled_call_is_the_batchers_to_end() -> None:
    async with fake_batcher() as batcher:
        backing, reply = BatcherService(batcher), Reply(streams=True)
        asked: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}
        call = Call(
            content="hi", params=None, sampling=asked, priority=0, timeout=None, namespace=None
        )
        ids = await backing.submit(call, reply)
        await reply.wait()
        backing.cancel(ids)
    assert batcher.statistics().cancelled == 1


async def test_handlers_hear_of_the_batchers_events() -> None:
    heard: list[object] = []
    async with fake_batcher() as batcher:
        detach = BatcherService(batcher).attach(heard.append)
        await batcher.generate("hi", max_tokens=1)
        n_heard = len(heard)
        assert n_heard >= 2
        detach()
        await batcher.generate("hi", max_tokens=1)
        assert len(heard) == n_heard


async def test_it_says_what_it_is() -> None:
    async with fake_batcher(n_ctx=640, n_parallel=3, max_queue_requests=7) as batcher:
        told = await BatcherService(batcher).hello()
    assert told["version"] == metadata.version("pybatcher")
    assert told["model"] == "fake"
    assert told["limits"] == {
        "max_sequence_length": 640,
        "n_ctx": 640,
        "n_parallel": 3,
        "max_prefixes": 16,
        "max_queue_requests": 7,
        "max_queue_tokens": batcher._scheduler_config.max_queue_tokens,
    }


async def test_what_it_cannot_do_is_refused() -> None:
    batcher = fake_batcher()
    with pytest.raises(BatcherClosedError, match="was not started"):
        BatcherService(batcher)
    async with batcher:
        with pytest.raises(InvalidRequestError, match="a reload is not for this process"):
            await BatcherService(batcher).reload({})

"""What raises for one caller ends that call with a typed error: no restart, others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pybatcher import Batcher, PybatcherError
from pybatcher.testing import FakeEngine, fake_batcher

ODD = "\ud800"  # no text: the engine cannot take it as a namespace

CALLS: dict[str, Callable[[Batcher], Coroutine[Any, Any, object]]] = {
    "generate": lambda batcher: batcher.generate("x", namespace=ODD),
    "score": lambda batcher: batcher.score("x", "y", namespace=ODD),
    "embed": lambda batcher: batcher.embed("x", namespace=ODD),
    "add_prefix": lambda batcher: batcher.add_prefix("once upon a time", namespace=ODD),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_namespace_that_is_no_text_harms_only_its_call(call: str) -> None:
    options = {"max_tokens": 20, "ignore_eos": True}
    async with fake_batcher(max_restarts=0) as batcher:
        alone = [await batcher.generate(f"{i}", **options) for i in range(3)]
    async with fake_batcher(max_restarts=0, max_prefixes=2) as batcher:
        others = [asyncio.create_task(batcher.generate(f"{i}", **options)) for i in range(3)]
        for _ in range(3):
            with pytest.raises(PybatcherError):
                await CALLS[call](batcher)
        together = await asyncio.gather(*others)
        assert [c.token_ids for c in together] == [c.token_ids for c in alone]
        assert batcher.health().status == "ready"
        assert batcher.statistics().restarts == 0
        assert not batcher.prefixes()


@pytest.mark.parametrize("name", ["seq_new", "seq_match"])
async def test_a_prefix_that_cannot_be_computed_is_told_to_who_waits_for_it(name: str) -> None:
    engine = FakeEngine()
    method = getattr(engine, name)
    broken = True

    def fails(*args: object, **options: object) -> object:
        if broken:
            raise OSError("no room for a prefix")
        return method(*args, **options)

    setattr(engine, name, fails)
    async with fake_batcher(engine, max_restarts=0, max_prefixes=2) as batcher:
        for _ in range(3):
            with pytest.raises(PybatcherError, match="no room for a prefix") as caught:
                await batcher.add_prefix("once upon a time", name="story")
            assert isinstance(caught.value.__cause__, OSError)
        assert not batcher.prefixes()
        broken = False
        info = await batcher.add_prefix("once upon a time", name="story")
        assert (info.name, batcher.prefixes()) == ("story", (info,))
        assert batcher.health().status == "ready"
        assert batcher.statistics().restarts == 0

"""Many requests with all that callers do to them: each ends once, and nothing is left."""

from __future__ import annotations

import asyncio
from collections import Counter

from batcher_helpers import until
from soak_caller import Caller

from pybatcher import Batcher
from pybatcher.engine import Engine
from pybatcher.testing import FakeEngine, byte_tokenizer, fake_batcher

ENDINGS = ("stop", "length", "cancelled", "left", "expired")


async def soak(batcher: Batcher, callers: list[Caller]) -> Counter[str]:
    """All callers at once; how many ended how. Nothing is left of them."""
    endings = Counter(await asyncio.gather(*(caller.ask(batcher) for caller in callers)))
    await until(lambda: batcher.statistics().running == 0)
    counts = batcher.statistics()
    assert sum(endings.values()) == len(callers)
    assert counts.submitted == counts.completed + counts.cancelled + counts.expired
    assert counts.rejected == counts.queued == 0
    await until(lambda: _all_blocks_are_back(batcher))
    for caller in callers:
        caller.check()
    return endings


def _all_blocks_are_back(batcher: Batcher) -> bool:
    counts = batcher.statistics()
    return counts.kv_free_blocks + counts.kv_cached_blocks == counts.kv_total_blocks


async def test_two_thousand_requests_of_the_fake_engine() -> None:
    engine = FakeEngine(n_ctx=2048, n_parallel=12)
    tokenizer = byte_tokenizer()
    callers = [Caller(number, tokenizer, None, "abc défg 東🙂") for number in range(2000)]
    async with fake_batcher(engine, n_batch=64, max_prefill_tokens=24) as batcher:
        endings = await soak(batcher, callers)
        assert engine.used_sequences == 0
        assert batcher.statistics().steps == engine.statistics()["forward_passes"]
    assert min(endings[how] for how in ENDINGS) > 20


async def test_five_hundred_requests_of_the_shipped_model() -> None:
    async with Batcher(n_threads=1, n_parallel=1) as reference:
        runtime = reference.runtime
        words = ["Once ", "upon ", "a time ", "there ", "was ", "Mia", ", ", "kite", "é", "🙂"]
        callers = [Caller(n, runtime.tokenizer, runtime.engine, words) for n in range(500)]
        async with Batcher(
            n_threads=1, n_ctx=2048, n_parallel=12, n_batch=64, max_prefill_tokens=24
        ) as batcher:
            endings = await soak(batcher, callers)
            engine = batcher.runtime.engine
            assert isinstance(engine, Engine)
            assert engine.used_sequences == 0
    assert min(endings[how] for how in ENDINGS) > 20

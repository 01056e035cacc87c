"""Outputs of several prompts as they come: through a small queue, with one end and one error."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from batcher_helpers import until

from pybatcher import Completion, InvalidRequestError, QueueFullError
from pybatcher.http.several_streams import steps_of_several
from pybatcher.testing import FakeEngine, fake_batcher

SAMPLING = {"max_tokens": 5, "ignore_eos": True}


async def test_any_number_goes_through_a_small_queue() -> None:
    prompts = ["a" * (1 + i % 7) for i in range(40)]
    async with fake_batcher() as batcher:
        expected = await batcher.generate(prompts, **SAMPLING)
    async with fake_batcher(FakeEngine(n_parallel=2), max_queue_requests=2) as batcher:
        made: dict[int, Completion] = {}
        texts = [""] * len(prompts)
        async for i, pieces in steps_of_several(batcher, prompts, SAMPLING, made):
            texts[i] += "".join(piece.text for piece in pieces)
        assert texts == [one.text for one in expected]
        assert [made[i].token_ids for i in range(40)] == [one.token_ids for one in expected]


async def test_a_queue_that_others_have_filled_is_an_error() -> None:
    async with fake_batcher(max_queue_requests=2, batch_timeout=60.0, batch_size=9) as batcher:
        others = [asyncio.create_task(batcher.generate("x")) for _ in range(2)]
        await until(lambda: batcher.statistics().queued == 2)
        with pytest.raises(QueueFullError):
            await anext(steps_of_several(batcher, ["a", "b"], SAMPLING, {}))
        for other in others:
            other.cancel()
        await asyncio.wait(others)


async def test_the_first_error_ends_all_of_them() -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError):
            async for _ in steps_of_several(batcher, ["a", [999], "c"], SAMPLING, {}):
                pass
        await until(lambda: batcher.statistics().running == batcher.statistics().queued == 0)


async def test_closed_it_cancels_what_is_in_flight() -> None:
    async with fake_batcher(FakeEngine(step_delay=0.001)) as batcher:
        long = {"max_tokens": 4000, "ignore_eos": True}
        async with aclosing(steps_of_several(batcher, ["a", "b"], long, {})) as steps:
            assert (await anext(steps))[0] in (0, 1)
        await until(lambda: batcher.statistics().running == batcher.statistics().queued == 0)
        assert batcher.statistics().cancelled == 2

"""Outputs of several prompts as they come: through a small queue, with one end and one error."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from batcher_helpers import until
from http_served import served

from pybatcher import Completion, InvalidRequestError, QueueFullError
from pybatcher.http import application
from pybatcher.http.openai.several_streams import steps_of_several
from pybatcher.testing import FakeEngine, fake_batcher

SAMPLING: Any = {"max_tokens": 5, "ignore_eos": True}


@pytest.mark.slow
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
        long: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}
        async with aclosing(steps_of_several(batcher, ["a", "b"], long, {})) as steps:
            assert (await anext(steps))[0] in (0, 1)
        await until(lambda: batcher.statistics().running == batcher.statistics().queued == 0)
        assert batcher.statistics().cancelled == 2


@pytest.mark.slow
async def test_over_http_it_is_no_429_and_what_is_wrong_is_a_status() -> None:
    prompts: list[Any] = ["a" * (1 + i % 7) for i in range(40)]
    body: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    engine = FakeEngine(n_parallel=2)
    async with (
        fake_batcher(engine, max_queue_requests=2) as batcher,
        served(application(batcher)) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        found = await http.post("/v1/completions", json={**body, "prompt": prompts})
        assert found.status_code == 200
        events = [line[6:] for line in found.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        *chunks, usage = map(json.loads, events[:-1])
        ended = [one["choices"][0]["index"] for one in chunks if _reason(one)]
        assert sorted(ended) == list(range(40))
        assert usage["usage"]["completion_tokens"] == 120
        wrong = ["a"] * 256 + [[5, 10**6]]  # its turn would come after the first event
        found = await http.post("/v1/completions", json={**body, "prompt": wrong})
        assert found.status_code == 400
        assert "1000000" in found.json()["error"]["message"]


def _reason(chunk: dict[str, Any]) -> Any:
    return chunk["choices"][0]["finish_reason"]

"""`generate` of a list of prompts: on every surface what one by one gives."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from batcher_helpers import until
from small_sidecar import sidecar

from pybatcher import (
    BlockingBatcher,
    Client,
    InvalidRequestError,
    QueueFullError,
    RequestTooLongError,
)
from pybatcher.testing import FakeEngine, fake_batcher

SURFACES = ["batcher", "threadsafe", "blocking", "client"]
SAMPLED = {"max_tokens": 9, "temperature": 1.0, "seed": 3}
Generate = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def generate_of(surface: str, folder: Path) -> AsyncIterator[Generate]:
    """Yield `generate` of a surface, as something to be awaited."""
    batcher = fake_batcher(n_ctx=256, n_parallel=4)
    if surface == "blocking":
        with BlockingBatcher.over(batcher) as blocking:
            yield lambda *prompt, **options: asyncio.to_thread(
                blocking.generate, *prompt, **options
            )
        return
    async with batcher:
        if surface == "batcher":
            yield batcher.generate
        elif surface == "threadsafe":
            remote = batcher.threadsafe
            yield lambda *prompt, **options: asyncio.wrap_future(
                remote.generate(*prompt, **options)
            )
        else:
            async with sidecar(folder / "p.sock", batcher), Client(folder / "p.sock") as client:
                yield client.generate


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize(
    "prompts",
    [
        [f"Once upon a {i}" for i in range(12)],
        ("Once", "Twice"),
        [[5, 6], [7, 8, 9]],
        ["Once", [5, 6]],
        deque(["Once", (5, 6)]),
        ["Once"],
    ],
    ids=["texts", "tuple", "ids", "both", "deque", "one"],
)
async def test_each_is_what_it_is_alone(surface: str, prompts: Any, tmp_path: Path) -> None:
    async with generate_of(surface, tmp_path) as generate:
        several = await generate(prompts, **SAMPLED)
        assert isinstance(several, list)
        alone = [await generate(prompt, **SAMPLED) for prompt in prompts]
        assert [one.token_ids for one in several] == [one.token_ids for one in alone]
        assert [one.text for one in several] == [one.text for one in alone]


@pytest.mark.parametrize("surface", SURFACES)
async def test_token_ids_are_one_prompt(surface: str, tmp_path: Path) -> None:
    async with generate_of(surface, tmp_path) as generate:
        assert (await generate([5, 6, 7], **SAMPLED)).token_ids
        assert (await generate((5, 6, 7), **SAMPLED)).token_ids


@pytest.mark.parametrize("surface", SURFACES)
async def test_output_goes_with_one_prompt_only(surface: str, tmp_path: Path) -> None:
    async with generate_of(surface, tmp_path) as generate:
        assert (await generate("Once", output=[5], **SAMPLED)).token_ids
        with pytest.raises(InvalidRequestError, match="output goes with one prompt"):
            await generate(["Once"], output=[5], **SAMPLED)


@pytest.mark.parametrize("surface", SURFACES)
async def test_an_empty_list_is_an_empty_prompt(surface: str, tmp_path: Path) -> None:
    async with generate_of(surface, tmp_path) as generate:
        for prompt in ([], ()):
            with pytest.raises(InvalidRequestError, match="prompt is "):
                await generate(prompt)


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize(
    ("bad", "error"),
    [("", InvalidRequestError), ("x" * 999, RequestTooLongError), ([9999], InvalidRequestError)],
    ids=["empty", "long", "unknown"],
)
async def test_if_one_fails_all_do(
    surface: str, bad: Any, error: type[Exception], tmp_path: Path
) -> None:
    async with generate_of(surface, tmp_path) as generate:
        with pytest.raises(error):
            await generate(["Once", "Twice", bad, "Thrice"], **SAMPLED)


async def test_a_failure_and_a_cancelled_caller_cancel_the_others() -> None:
    engine = FakeEngine(n_parallel=8)
    engine.fail_sequences = lambda plan: (
        {plan.entries[-1].seq_id: "it is not finite"} if len(engine.plans) == 5 else {}
    )
    long = {"max_tokens": 8000, "ignore_eos": True}
    async with fake_batcher(engine) as batcher:
        with pytest.raises(Exception, match="it is not finite"):
            await batcher.generate(["a", "b", "c"], **long)
        await until(lambda: batcher.statistics().cancelled == 2)
        task = asyncio.create_task(batcher.generate(["a", "b", "c"], **long))
        await until(lambda: batcher.statistics().running == 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: batcher.statistics().cancelled == 5)
        await until(lambda: engine.used_sequences == 0)


async def test_no_more_than_256_are_in_flight() -> None:
    most = 0
    async with fake_batcher(n_parallel=8) as batcher:
        task = asyncio.create_task(batcher.generate(["Once"] * 600, max_tokens=1))
        while not task.done():
            counts = batcher.statistics()
            most = max(most, counts.queued + counts.running)
            await asyncio.sleep(0)
        assert len(task.result()) == 600
    assert 200 < most <= 256


async def test_a_list_goes_through_a_smaller_queue() -> None:
    async with fake_batcher(max_queue_requests=16, n_parallel=2) as batcher:
        completions = await batcher.generate(["a", "b"] * 50, max_tokens=1)
        assert len(completions) == 100
        assert batcher.statistics().completed == 100


async def test_a_list_is_refused_where_others_have_filled_the_queue() -> None:
    options: dict[str, Any] = {"batch_timeout": 60.0, "batch_size": 500}
    async with fake_batcher(max_queue_requests=2, **options) as batcher:
        others = [asyncio.create_task(batcher.generate("x")) for _ in range(2)]
        await until(lambda: batcher.statistics().queued == 2)
        with pytest.raises(QueueFullError):
            await batcher.generate(["a", "b", "c"])
        for other in others:
            other.cancel()
        await asyncio.wait(others)

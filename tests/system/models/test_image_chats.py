"""Chats with images through the whole batcher: the tokens of transformers, in any company."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pybatcher import Batcher
from pybatcher.params.config import EngineConfig
from pybatcher.scheduling import StepPlan, StepResult
from pybatcher.serving.runtime import Runtime, open_checkpoint
from tests.support.batcher_helpers import until
from tests.support.vision_checkpoints import (
    Turn,
    answer,
    make_vision_checkpoint,
    messages_of,
    picture,
)

N_TOKENS = 8
FAMILIES = ("qwen3_vl", "qwen3_5")


CAT, DOG = picture(40, 60), picture(33, 20, seed=1)
CHATS: dict[str, list[Turn]] = {
    "one image": [Turn("user", (CAT, "What is this?"))],
    "two images with text between": [Turn("user", ("See ", CAT, " and ", DOG, " here."))],
    "the same image twice": [Turn("user", (CAT, CAT, "The same?"))],
    "odd sizes": [Turn("user", (picture(9, 61), picture(50, 7), "Hm."))],
    "grey": [Turn("user", (picture(30, 30, "L"), "Colour?"))],
    "palette": [Turn("user", (picture(24, 36, "P"), "Colour?"))],
    "text only": [Turn("user", ("How many legs has a spider?",))],
}

Known = tuple[Path, dict[str, list[int]]]


@pytest.fixture(scope="module", params=FAMILIES)
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    path = tmp_path_factory.mktemp("vision") / request.param
    module = make_vision_checkpoint(path, request.param)
    return path, {name: answer(path, module, chat, N_TOKENS) for name, chat in CHATS.items()}


def batcher(path: Path, **options: Any) -> Batcher:
    settings = {"dtype": "f32", "n_ctx": 2048, "n_parallel": 8, "weights_cache": "off"}
    return Batcher(path, **settings | options)


async def ask(one: Batcher, chat: list[Turn]) -> list[int]:
    answered = await one.chat(
        messages_of(chat), max_tokens=N_TOKENS, temperature=0.0, ignore_eos=True
    )
    return list(answered.token_ids)


@pytest.mark.parametrize("n_batch", [64, 512])
async def test_tokens_are_those_of_transformers(n_batch: int, known: Known) -> None:
    path, expected = known
    async with batcher(path, n_batch=n_batch) as one:
        assert {name: await ask(one, chat) for name, chat in CHATS.items()} == expected


async def test_tokens_in_a_crowd(known: Known) -> None:
    path, expected = known
    async with batcher(path, n_batch=96) as one:
        found = await asyncio.gather(*(ask(one, chat) for chat in CHATS.values()))
        assert dict(zip(CHATS, found, strict=True)) == expected
        again = await asyncio.gather(*(ask(one, chat) for chat in CHATS.values()))
        assert again == found


async def test_a_second_turn_computes_only_what_is_new(known: Known) -> None:
    path, _ = known
    async with batcher(path, block_size=16) as one:
        first = await one.chat(messages_of(CHATS["one image"]), max_tokens=4, temperature=0.0)
        turns = [*messages_of(CHATS["one image"]), first.message]
        second = await one.chat(
            [*turns, {"role": "user", "content": "And now?"}], max_tokens=4, temperature=0.0
        )
        assert second.usage.cached_tokens >= first.usage.prompt_tokens // 16 * 16


@pytest.mark.parametrize("is_computed", [False, True])
async def test_crashes_at_any_step_leave_no_trace(is_computed: bool, known: Known) -> None:
    path, expected = known
    steps, in_tower = count(), []

    def open_model(config: EngineConfig, n_prefixes: int) -> Runtime:
        runtime = open_checkpoint(path, None, config, n_prefixes)
        step = runtime.engine.step

        def faulty(plan: StepPlan) -> StepResult:
            is_first_of_tower = plan.encode is not None and True not in in_tower
            if is_first_of_tower or (len(plan.entries) > 1 and next(steps) % 3 == 2):
                if is_computed:
                    step(plan)  # its result is lost
                in_tower.append(plan.encode is not None)
                raise MemoryError("no room for the pass")
            return step(plan)

        runtime.engine.step = faulty  # type: ignore[method-assign]
        return runtime

    options: dict[str, Any] = {"dtype": "f32", "n_ctx": 2048, "n_parallel": 8, "n_batch": 48}
    one = Batcher._over(open_model, None, {**options, "max_restarts": 1000})
    async with one:
        found = await asyncio.gather(*(ask(one, chat) for chat in CHATS.values()))
        assert dict(zip(CHATS, found, strict=True)) == expected
    assert {True, False} <= set(in_tower)


async def test_a_cancelled_image_harms_nobody(known: Known) -> None:
    path, expected = known
    async with batcher(path, n_batch=16) as one:
        tasks = [asyncio.ensure_future(ask(one, chat)) for chat in CHATS.values()]
        await until(lambda: one.statistics().running > 0)
        for task in tasks[::2]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        names = list(CHATS)
        for name, output in list(zip(names, found, strict=True))[1::2]:
            assert output == expected[name]
        assert await ask(one, CHATS["one image"]) == expected["one image"]


async def test_without_the_tower_the_model_takes_text_alone(known: Known) -> None:
    path, expected = known
    async with batcher(path, vision=False) as one:
        assert not (await one.model_info()).takes_images
        assert await ask(one, CHATS["text only"]) == expected["text only"]

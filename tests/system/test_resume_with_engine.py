"""The compiled engine: from every token of an output on, the bits of the undisturbed run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybatcher import Batcher, Piece
from pybatcher.params.config import EngineConfig
from pybatcher.serving.runtime import Runtime, open_checkpoint
from pybatcher.testing import FailWhen, FaultyEngine

PROMPT = "Once upon a time"
REPETITIVE = "The red fox ran to the old mill. " * 4
BYTES = dict.fromkeys((133, 108, 164, 230, 111, 178, 259, 252, 228), 15.0)  # of "é€😀"
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (PROMPT, {"max_tokens": 32, "logprobs": 2}),
    "sampled and penalised": (
        PROMPT,
        {
            "max_tokens": 32,
            "temperature": 0.9,
            "seed": 3,
            "top_p": 0.95,
            "repetition_penalty": 1.2,
            "presence_penalty": 0.2,
            "frequency_penalty": 0.3,
            "logit_bias": {300: 3.0, 410: 2.0},
            "logprobs": 3,
        },
    ),
    "at least so many": (
        "What is 7 plus 5?",
        {"max_tokens": 60, "min_tokens": 25, "temperature": 0.7, "seed": 5, "logprobs": 0},
    ),
    "an end token": ("What is 7 plus 5?", {"max_tokens": 60}),
    "no end token": ("What is 7 plus 5?", {"max_tokens": 40, "ignore_eos": True}),
    "cut characters": (
        PROMPT,
        {"max_tokens": 40, "temperature": 1.0, "seed": 1, "logit_bias": BYTES, "logprobs": 1},
    ),
    "a repetitive text": (
        REPETITIVE,
        {"max_tokens": 40, "logit_bias": dict.fromkeys((300, 410, 520), 40.0), "logprobs": 1},
    ),
}
TINY = {"n_ctx": 112, "block_size": 16, "n_parallel": 6, "output_reserve": 0, "watermark": 0.0}


async def pieces_of(batcher: Batcher, prompt: str, **arguments: Any) -> list[Piece]:
    stream = batcher.stream(prompt, **arguments)
    pieces = [piece async for piece in stream]
    assert stream.completion is not None
    assert stream.completion.text == "".join(map(str, pieces))
    return pieces


def tokens_of(pieces: list[Piece]) -> tuple[int, ...]:
    return tuple(token for piece in pieces for token in piece.token_ids)


async def check(
    batcher: Batcher,
    way: str,
    undisturbed: list[Piece],
    *,
    shares: bool = True,
    every: int = 1,
    **others: Any,
) -> None:
    """All at once: each goes on from `every` tokens more. They may share KV, or not."""
    prompt, arguments = WAYS[way]
    tokens = tokens_of(undisturbed)
    calls = (
        pieces_of(batcher, prompt, **arguments, **others, output=tokens[:k])
        if shares
        else pieces_of(batcher, prompt, **arguments, output=tokens[:k], namespace=f"{k}")
        for k in (*range(0, len(tokens), every), len(tokens))
    )
    going_on = await asyncio.gather(*calls)
    for pieces, k in zip(going_on, range(0, len(tokens), every), strict=False):
        assert pieces == undisturbed[k:]
    logprobs = () if "logprobs" in arguments else None
    assert going_on[-1] == [Piece("", (), logprobs, undisturbed[-1].finish_reason)]


@pytest.mark.parametrize("dtype", ["f32", "int8"])
@pytest.mark.parametrize("way", WAYS)
async def test_from_every_token_on(way: str, dtype: str) -> None:
    """In int8 from every third one: what a resume does knows nothing of the dtype."""
    prompt, arguments = WAYS[way]
    every = 1 if dtype == "f32" else 3
    async with Batcher(n_threads=1, dtype=dtype, max_draft_tokens=0) as batcher:
        undisturbed = await pieces_of(batcher, prompt, **arguments)
        await check(batcher, way, undisturbed, every=every)
    for options in ({"max_draft_tokens": 8}, {"n_batch": 9}):
        async with Batcher(n_threads=1, dtype=dtype, **options) as batcher:
            await check(batcher, way, undisturbed, every=every)
    async with Batcher(n_threads=1, dtype=dtype, max_draft_tokens=4, **TINY) as batcher:
        await check(batcher, way, undisturbed, shares=False, every=every)
        assert batcher.statistics().preemptions > 0 or way == "an end token"


@pytest.mark.parametrize("max_draft_tokens", [0, 8])
async def test_with_stop_texts_that_end_it_anywhere(max_draft_tokens: int) -> None:
    for way in ("greedy", "cut characters"):
        prompt, arguments = WAYS[way]
        async with Batcher(n_threads=1, max_draft_tokens=max_draft_tokens) as batcher:
            text = "".join(map(str, await pieces_of(batcher, prompt, **arguments)))
            for i in range(0, len(text) - 5, 9):
                stop = (text[i : i + 5], text[i : i + 4] + "~")
                undisturbed = await pieces_of(batcher, prompt, **arguments, stop=stop)
                await check(batcher, way, undisturbed, stop=stop)


async def test_with_a_system_prompt_and_in_a_namespace() -> None:
    prompt, arguments = WAYS["sampled and penalised"]
    where = {"namespace": "tenant"}
    async with Batcher(n_threads=1, system_prompt="You are a kind storyteller.") as batcher:
        undisturbed = await pieces_of(batcher, prompt, **arguments, **where)
    async with Batcher(
        n_threads=1, system_prompt="You are a kind storyteller.", n_batch=12
    ) as batcher:
        await check(batcher, "sampled and penalised", undisturbed, **where)


async def test_through_failures_of_the_engine() -> None:
    """Whose KV is made again once more. (One that fails alone would be taken for the cause.)"""

    def open_faulty(config: EngineConfig, n_prefixes: int) -> Runtime:
        opened = open_checkpoint(None, None, config, n_prefixes)
        failing = FailWhen(lambda facts: len(facts.plan.entries) > 1 and facts.number % 7 == 4)
        engine = FaultyEngine(opened.engine, failing)
        return Runtime(engine, opened.tokenizer, opened.chat_template)

    way = "sampled and penalised"
    prompt, arguments = WAYS[way]
    async with Batcher(n_threads=1) as batcher:
        undisturbed = await pieces_of(batcher, prompt, **arguments)
    options = {"max_restarts": 100, "n_batch": 64, "n_parallel": 40}
    async with Batcher._over(open_faulty, None, {"n_threads": 1, **options}) as batcher:
        await check(batcher, way, undisturbed, shares=False)
        assert batcher.statistics().restarts > 3

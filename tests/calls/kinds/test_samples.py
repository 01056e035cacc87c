"""`n` > 1: several outputs of one prompt, each the same whatever the others are."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict

import pytest
from batcher_helpers import until, wait_for

from pybatcher import (
    Batcher,
    BlockingBatcher,
    DeadlineExceededError,
    EngineFailedError,
    InvalidRequestError,
    QueueFullError,
    SamplingParams,
)
from pybatcher.calls.reply import sample_seed
from pybatcher.scheduling import StepPlan
from pybatcher.testing import FakeClock, FakeEngine, byte_tokenizer, fake_batcher

PROMPT = "Once upon a time, in a land where nobody had ever heard of samples, "
SAMPLED = SamplingParams(max_tokens=30, temperature=1.0, seed=7, logprobs=1)


async def test_each_is_what_its_seed_gives_alone() -> None:
    async with fake_batcher(n_parallel=5) as batcher:
        completion = await batcher.generate(PROMPT, SAMPLED, n=5)
        assert len(completion.choices) == 5
        assert completion.choices[0] is completion
        for i, choice in enumerate(completion.choices):
            alone = await batcher.generate(PROMPT, SAMPLED, seed=sample_seed(7, i))
            assert choice.token_ids == alone.token_ids
            assert (choice.text, choice.logprobs) == (alone.text, alone.logprobs)
        assert len({choice.token_ids for choice in completion.choices}) == 5
        assert (await batcher.generate(PROMPT, SAMPLED)).token_ids == completion.token_ids


def test_seeds_are_those_of_splitmix64() -> None:
    assert sample_seed(1234567, 0) == 1234567
    # The first numbers that the published reference implementation makes of this seed.
    assert [sample_seed(1234567, i) for i in (1, 2, 3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    assert all(0 <= sample_seed(2**64 - 1, i) < 2**64 for i in range(64))


async def test_one_is_its_only_choice() -> None:
    async with fake_batcher() as batcher:
        completion = await batcher.generate(PROMPT, max_tokens=3)
    assert completion.choices == (completion,)


async def test_greedy_samples_are_equal() -> None:
    async with fake_batcher() as batcher:
        completion = await batcher.generate(PROMPT, max_tokens=20, n=4)
    assert len({choice.token_ids for choice in completion.choices}) == 1


async def test_they_share_the_prompts_kv_and_usage_is_that_of_the_whole() -> None:
    engine = FakeEngine(n_parallel=4)
    async with fake_batcher(engine, max_draft_tokens=0) as batcher:
        completion = await batcher.generate(PROMPT, SAMPLED, n=4, ignore_eos=True)
    n_prompt = len(byte_tokenizer().encode(PROMPT))
    computed = engine.statistics()["computed_tokens"]
    assert computed == n_prompt + 3 + 4 * 29, "its last token is each sample's own"
    usage = completion.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (n_prompt, 0, 120)
    assert [choice.usage.completion_tokens for choice in completion.other_choices] == [30] * 3


async def test_a_stream_has_the_pieces_of_all_and_ends_with_the_last() -> None:
    async with fake_batcher(n_parallel=3) as batcher:
        whole = await batcher.generate(PROMPT, SAMPLED, n=3)
        stream = batcher.stream(PROMPT, SAMPLED, n=3)
        pieces = [piece async for piece in stream]
    assert stream.completion is not None
    texts, reasons = defaultdict(str), defaultdict(list)
    for piece in pieces:
        texts[piece.index] += piece.text
        if piece.finish_reason is not None:
            reasons[piece.index].append(piece.finish_reason)
    for i, choice in enumerate(whole.choices):
        assert texts[i] == choice.text == stream.completion.choices[i].text
        assert reasons[i] == [choice.finish_reason]
    indices = [piece.index for piece in pieces[:9]]
    assert set(indices) == {0, 1, 2}, "not one after the other"


async def test_with_fewer_sequences_than_samples() -> None:
    async with fake_batcher(n_parallel=2) as batcher:
        few = await batcher.generate(PROMPT, SAMPLED, n=5)
    async with fake_batcher(n_parallel=5) as batcher:
        many = await batcher.generate(PROMPT, SAMPLED, n=5)
    assert [c.token_ids for c in few.choices] == [c.token_ids for c in many.choices]


@pytest.mark.parametrize("streams", [False, True])
async def test_cancelling_cancels_all(streams: bool) -> None:
    engine = FakeEngine(n_parallel=2)
    async with fake_batcher(engine) as batcher:
        options = {"max_tokens": 5000, "ignore_eos": True, "n": 4}
        if streams:
            stream = batcher.stream(PROMPT, **options)
            await anext(stream)
            stream.close()
        else:
            task = asyncio.create_task(batcher.generate(PROMPT, **options))
            await until(lambda: batcher.statistics().running == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: batcher.statistics().cancelled == 4)
        await until(lambda: engine.used_sequences == 0)


async def test_if_one_fails_all_do() -> None:
    def fail(plan: StepPlan) -> dict[int, str]:
        return {plan.entries[-1].seq_id: "it is not finite"} if len(engine.plans) == 5 else {}

    engine = FakeEngine(n_parallel=4, fail_sequences=fail)
    async with fake_batcher(engine) as batcher:
        with pytest.raises(EngineFailedError, match="it is not finite"):
            await batcher.generate(PROMPT, max_tokens=1000, ignore_eos=True, n=4)
        await until(lambda: batcher.statistics().cancelled == 3)
        assert batcher.statistics().failed == 1
        await until(lambda: engine.used_sequences == 0)


async def test_where_the_queue_has_no_room_for_all() -> None:
    async with fake_batcher(max_queue_requests=3, batch_size=9, batch_timeout=0.05) as batcher:
        first = asyncio.create_task(batcher.generate(PROMPT, max_tokens=1))
        await until(lambda: batcher.statistics().queued == 1)
        with pytest.raises(QueueFullError):
            await batcher.generate(PROMPT, max_tokens=2, n=3)
        await first
        await until(lambda: batcher.statistics().queued == batcher.statistics().running == 0)
        assert len((await batcher.generate(PROMPT, max_tokens=2, n=3)).choices) == 3


async def test_a_timeout() -> None:
    clock, go_on = FakeClock(), threading.Event()
    engine = FakeEngine(n_parallel=4)

    def pause(plan: StepPlan) -> None:
        if len(engine.plans) == 6:
            wait_for(go_on)

    engine.before_step = pause
    async with fake_batcher(engine, clock=clock, batch_size=1) as batcher:
        task = asyncio.create_task(
            batcher.generate(PROMPT, max_tokens=900, ignore_eos=True, n=3, timeout=1.0)
        )
        await until(lambda: len(engine.plans) == 6)
        clock.advance(2.0)
        go_on.set()
        completion = await task
        assert [choice.finish_reason for choice in completion.choices] == ["deadline"] * 3
    engine, clock = FakeEngine(n_parallel=1), FakeClock()
    go_on.clear()
    engine.before_step = pause
    async with fake_batcher(engine, clock=clock, batch_size=1) as batcher:
        task = asyncio.create_task(
            batcher.generate(PROMPT, max_tokens=900, ignore_eos=True, n=2, timeout=1.0)
        )
        await until(lambda: len(engine.plans) == 6)
        clock.advance(2.0)
        go_on.set()
        with pytest.raises(DeadlineExceededError):  # one of them has not begun
            await task


@pytest.mark.parametrize("n", [0, 129, True, 1.0, "2"])
def test_bad_n(n: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"n is .*; it must be a whole number from 1"):
        SamplingParams(n=n)  # type: ignore[arg-type]


def test_without_asyncio() -> None:
    with BlockingBatcher.over(fake_batcher()) as batcher:
        completion = batcher.generate(PROMPT, SAMPLED, n=3)
        pieces = list(batcher.stream(PROMPT, SAMPLED, n=3))
    for i, choice in enumerate(completion.choices):
        assert "".join(str(p) for p in pieces if p.index == i) == choice.text


async def test_over_the_real_engine() -> None:
    prompt = "Once upon a time there was a girl called Mia who had a kite. " * 3
    sampled = SamplingParams(max_tokens=16, temperature=0.9, seed=3, logprobs=1)
    async with Batcher(n_ctx=4096, n_parallel=8) as batcher:
        alone = [await batcher.generate(prompt, sampled, seed=sample_seed(3, i)) for i in range(8)]
    async with Batcher(n_ctx=4096, n_parallel=8, max_draft_tokens=0) as batcher:
        completion = await batcher.generate(prompt, sampled, n=8)
        computed = batcher.runtime.engine.statistics()["computed_tokens"]
    for choice, expected in zip(completion.choices, alone, strict=True):
        assert (choice.token_ids, choice.logprobs) == (expected.token_ids, expected.logprobs)
    n_drawn = sum(len(choice.token_ids) - 1 for choice in completion.choices)
    assert computed == completion.usage.prompt_tokens + 7 + n_drawn

"""What a caller of `Batcher` gets, and what it may rely on."""

from __future__ import annotations

import asyncio
import threading

import pytest
from batcher_helpers import acquire, until

from pybatcher import Batcher, BlockingBatcher, DeadlineExceededError
from pybatcher.testing import FakeClock, FakeEngine, byte_tokenizer, fake_batcher
from pybatcher.testing.byte_tokenizer import EOS_TOKEN_ID

PROMPT = "Once upon a time"


async def alone(prompt: str, **sampling: object) -> object:
    """The completion of an undisturbed request."""
    async with fake_batcher() as batcher:
        return await batcher.generate(prompt, **sampling)


async def test_completion() -> None:
    async with fake_batcher() as batcher:
        completion = await batcher.generate(PROMPT, max_tokens=20, ignore_eos=True)
    assert completion.text == byte_tokenizer().decode(completion.token_ids)
    assert str(completion) == completion.text
    assert len(completion.token_ids) == 20
    assert completion.finish_reason == "length"
    assert completion.usage.prompt_tokens == 1 + len(PROMPT)
    assert completion.usage.completion_tokens == 20
    assert completion.logprobs is None


async def test_ttft_tpot_and_itl_follow_from_the_timeline() -> None:
    clock = FakeClock(100.0)
    engine = FakeEngine(before_step=lambda plan: clock.advance(0.5))
    async with fake_batcher(engine, clock=clock, batch_size=1) as batcher:
        completion = await batcher.generate(PROMPT, max_tokens=4, ignore_eos=True)
    timeline = completion.timeline
    assert timeline.submitted == timeline.admitted == 100.0
    assert timeline.token_times == (100.5, 101.0, 101.5, 102.0)
    assert timeline.first_token == 100.5
    assert timeline.finished == 102.0
    assert timeline.queued == 0.0
    assert timeline.ttft == 0.5
    assert timeline.tpot == 0.5
    assert timeline.itl == (0.5, 0.5, 0.5)


async def test_end_token_ends_with_reason_stop_and_leaves_no_text() -> None:
    async with fake_batcher(FakeEngine(vocab_size=258)) as batcher:
        completions = [await batcher.generate(f"{PROMPT} {i}", max_tokens=2000) for i in range(3)]
        ignoring = await batcher.generate(f"{PROMPT} 0", max_tokens=2000, ignore_eos=True)
    for completion in completions:
        assert completion.finish_reason == "stop"
        assert completion.token_ids[-1] == EOS_TOKEN_ID
        assert EOS_TOKEN_ID not in completion.token_ids[:-1]
        assert completion.text == byte_tokenizer().decode(completion.token_ids)
    assert len(ignoring.token_ids) == 2000
    assert ignoring.token_ids[: len(completions[0].token_ids)] == completions[0].token_ids


async def test_stop_token_ids_and_their_text() -> None:
    full = await alone(PROMPT, max_tokens=30, ignore_eos=True)
    end = full.token_ids[11]
    async with fake_batcher() as batcher:
        ended = await batcher.generate(
            PROMPT, max_tokens=30, stop_token_ids=[end], skip_special_tokens=False
        )
    n_tokens = full.token_ids.index(end) + 1
    assert ended.finish_reason == "stop"
    assert ended.token_ids == full.token_ids[:n_tokens]
    assert ended.text == byte_tokenizer().decode(ended.token_ids[:-1], skip_special_tokens=False)


async def test_stop_text_ends_the_output_before_it() -> None:
    full = await alone(PROMPT, max_tokens=200, ignore_eos=True)
    stop = full.text[60:63]
    before = full.text[: full.text.index(stop)]
    engine = FakeEngine()
    async with fake_batcher(engine) as batcher:
        completion = await batcher.generate(PROMPT, max_tokens=200, ignore_eos=True, stop=stop)
        assert batcher.statistics().completed == 1
        assert engine.used_sequences == 0
    assert completion.text == before
    assert completion.finish_reason == "stop"
    assert completion.token_ids == full.token_ids[: len(completion.token_ids)]
    assert len(completion.token_ids) < 200


async def test_logprobs_are_those_of_the_tokens() -> None:
    async with fake_batcher() as batcher:
        completion = await batcher.generate(PROMPT, max_tokens=9, logprobs=2, ignore_eos=True)
        pieces = [
            piece
            async for piece in batcher.stream(PROMPT, max_tokens=9, logprobs=2, ignore_eos=True)
        ]
    assert completion.logprobs is not None
    assert tuple(entry.token_id for entry in completion.logprobs) == completion.token_ids
    assert all(entry.logprob <= 0 and len(entry.top) == 2 for entry in completion.logprobs)
    streamed = [entry for piece in pieces if piece.logprobs for entry in piece.logprobs]
    assert tuple(streamed) == completion.logprobs


async def test_seeds() -> None:
    async with fake_batcher() as batcher:
        same = [await batcher.generate(PROMPT, temperature=1.0, seed=3) for _ in range(2)]
        other = await batcher.generate(PROMPT, temperature=1.0, seed=4)
        unseeded = [await batcher.generate(PROMPT, temperature=1.0) for _ in range(2)]
    assert same[0].token_ids == same[1].token_ids != other.token_ids
    assert unseeded[0].token_ids != unseeded[1].token_ids


async def test_everybody_gets_the_tokens_they_would_have_got_alone() -> None:
    prompts = [f"prompt {i} " * (1 + i % 5) for i in range(24)]
    async with fake_batcher(n_parallel=5, n_batch=23) as batcher:
        together = await asyncio.gather(*(batcher.generate(p, max_tokens=30) for p in prompts))
    for prompt, completion in zip(prompts, together, strict=True):
        assert completion.token_ids == (await alone(prompt, max_tokens=30)).token_ids


async def test_cancelling_the_task_cancels_the_request() -> None:
    engine = FakeEngine(step_delay=0.001)
    async with fake_batcher(engine) as batcher:
        task = asyncio.create_task(batcher.generate(PROMPT, max_tokens=100_000, ignore_eos=True))
        await until(lambda: batcher.statistics().generated_tokens > 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: batcher.statistics().cancelled == 1)
        n_steps = len(engine.plans)
        await until(lambda: engine.used_sequences == 0)
        n_at_the_end = len(engine.plans)
        assert n_at_the_end <= n_steps + 1
        await batcher.generate("another", max_tokens=1)
        assert len(engine.plans) == n_at_the_end + 1, "there was no step for nobody"


async def test_cancelled_mid_prefill_its_kv_is_free_by_the_next_step_boundary() -> None:
    steps = threading.Semaphore(0)
    engine = FakeEngine(before_step=lambda plan: acquire(steps))
    async with fake_batcher(engine, n_batch=16, batch_size=1) as batcher:
        task = asyncio.create_task(batcher.generate([1] * 200, max_tokens=5))
        steps.release()
        await until(lambda: len(engine.plans) == 2)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        steps.release()
        await until(lambda: batcher.statistics().kv_free_blocks < 256)
        await until(lambda: engine.used_sequences == 0)
        assert len(engine.plans) == 2
        again = asyncio.create_task(batcher.generate([1] * 200, max_tokens=1))
        steps.release(100)
        assert (await again).usage.cached_tokens == 32


async def test_timeout_before_the_first_token() -> None:
    clock = FakeClock()
    engine = FakeEngine(before_step=lambda plan: clock.advance(1.0))
    async with fake_batcher(engine, clock=clock, n_batch=16, batch_size=1) as batcher:
        with pytest.raises(DeadlineExceededError, match=r"no token came within 3\.000 s"):
            await batcher.generate([1] * 100, timeout=2.5)
        assert batcher.statistics().expired == 1


async def test_timeout_after_some_tokens_gives_what_there_is() -> None:
    clock = FakeClock()
    engine = FakeEngine(before_step=lambda plan: clock.advance(1.0))
    async with fake_batcher(engine, clock=clock, batch_size=1) as batcher:
        completion = await batcher.generate(PROMPT, timeout=4.5, ignore_eos=True)
    assert completion.finish_reason == "deadline"
    assert len(completion.token_ids) == 5
    assert completion.text == byte_tokenizer().decode(completion.token_ids)


async def test_expired_work_is_never_prefilled_even_on_an_idle_engine() -> None:
    clock, engine = FakeClock(), FakeEngine()
    async with fake_batcher(engine, clock=clock, batch_size=8, batch_timeout=0.01) as batcher:
        task = asyncio.create_task(batcher.generate(PROMPT, timeout=0.05))
        await until(lambda: batcher.statistics().queued == 1)
        clock.advance(0.06)
        with pytest.raises(DeadlineExceededError):
            await task
        assert engine.plans == []


async def test_a_request_with_a_deadline_does_not_wait_for_company_beyond_it() -> None:
    async with fake_batcher(batch_size=8, batch_timeout=60.0) as batcher:
        made = await asyncio.wait_for(batcher.generate(PROMPT, max_tokens=2, timeout=30.0), 20)
        assert len(made.token_ids) == 2


async def test_several_batchers_in_one_process() -> None:
    async with fake_batcher() as one, fake_batcher(n_parallel=2) as two:
        a, b = await asyncio.gather(
            one.generate(PROMPT, max_tokens=9), two.generate(PROMPT, max_tokens=9)
        )
        assert a.token_ids == b.token_ids
        assert one.statistics().submitted == two.statistics().submitted == 1
    assert one.health().status == two.health().status == "closed"


async def test_statistics_add_up() -> None:
    async with fake_batcher(FakeEngine(n_parallel=2, n_ctx=1024)) as batcher:
        await asyncio.gather(
            *(batcher.generate([i] * 40, max_tokens=5, ignore_eos=True) for i in range(4))
        )
        await batcher.generate([0] * 40, max_tokens=1)
        counts = batcher.statistics()
    assert (counts.submitted, counts.completed, counts.queued, counts.running) == (5, 5, 0, 0)
    assert counts.prompt_tokens == 5 * 40
    assert counts.cached_tokens == 32
    assert counts.generated_tokens == 4 * 5 + 1
    assert counts.computed_tokens == 5 * 40 - 32 + 4 * 4
    assert counts.kv_total_blocks == 32
    assert counts.kv_cached_blocks == 4
    assert counts.kv_free_blocks == 28


@pytest.mark.parametrize("kind", [Batcher, BlockingBatcher])
def test_a_module_needs_no_tokenizer(kind: type[Batcher | BlockingBatcher]) -> None:
    assert kind.from_torch(object())  # it is opened at the start

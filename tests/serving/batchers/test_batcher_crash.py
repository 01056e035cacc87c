"""An engine that fails is restarted, and nobody notices more than a pause."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
from batcher_helpers import PATIENCE, until, wait_for
from faulty_engine import FaultyEngine, once, random_failures

from pybatcher import (
    BatcherClosedError,
    Completion,
    DeadlineExceededError,
    EngineError,
    EngineFailedError,
    SamplingParams,
)
from pybatcher.scheduling import Request, Scheduler, StepPlan
from pybatcher.serving.mailbox import SharePrefix
from pybatcher.testing import FakeClock, FakeEngine, fake_batcher

PROMPT = "Once upon a time"


def prompts(count: int) -> list[list[int]]:
    """Token ids: some equal, some that begin alike, some of several chunks."""
    rng = random.Random(7)
    common = [rng.randrange(250) for _ in range(70)]
    made = [[*common[: rng.choice((5, 40, 70))], i % 9, i % 3] for i in range(count)]
    return [prompt * (1 + 3 * (i % 8 == 0)) for i, prompt in enumerate(made)]


def params(i: int) -> SamplingParams:
    """Greedy and sampled in turn; every third with log-probabilities."""
    return SamplingParams(
        max_tokens=6 + i % 23,
        temperature=float(i % 2),
        seed=i,
        logprobs=2 if i % 3 == 0 else None,
        ignore_eos=True,
    )


def outputs(completions: list[Completion]) -> list[object]:
    return [(c.text, c.token_ids, c.finish_reason, c.logprobs, c.usage) for c in completions]


async def streamed(engine: FakeEngine, count: int, **options: object) -> list[object]:
    """What `count` streams give: texts, ids and log-probabilities, piece by piece."""

    async def one(i: int) -> object:
        pieces = [piece async for piece in batcher.stream(prompts(count)[i], params(i))]
        assert all(len(piece.token_ids) == 1 for piece in pieces)
        return pieces

    async with fake_batcher(engine, n_batch=48, max_restarts=10_000, **options) as batcher:
        return list(await asyncio.gather(*(one(i) for i in range(count))))


@pytest.mark.parametrize("system_prompt", [None, "You are the same in front of everybody."])
@pytest.mark.parametrize("seed", range(4))
async def test_streams_go_on_as_if_nothing_had_happened(
    seed: int, system_prompt: str | None
) -> None:
    sizes = {"n_parallel": 12 + 2 * (seed % 2), "n_ctx": 4096, "block_size": 16}
    undisturbed = await streamed(FakeEngine(**sizes), 32, system_prompt=system_prompt)
    engine = FaultyEngine(random_failures(seed, 0.3), **sizes)
    assert await streamed(engine, 32, system_prompt=system_prompt) == undisturbed
    assert engine.n_restarts == engine.n_failures > 3


async def test_what_callers_and_statistics_tell_of_it() -> None:
    engine = FaultyEngine(once(4))
    options = {"batch_size": 2, "batch_timeout": 60.0, "n_batch": 64, "max_draft_tokens": 0}
    async with fake_batcher(engine, **options) as batcher:
        disturbed = await asyncio.gather(
            *(batcher.generate([i] * 40, max_tokens=9, ignore_eos=True) for i in (1, 2))
        )
        counts = batcher.statistics()
        health = batcher.health()
    async with fake_batcher() as batcher:
        expected = [await batcher.generate([i] * 40, max_tokens=9, ignore_eos=True) for i in (1, 2)]
    assert outputs(disturbed) == outputs(expected)
    assert (counts.restarts, counts.submitted, counts.completed, counts.failed) == (1, 2, 2, 0)
    assert counts.prompt_tokens == 80
    assert counts.cached_tokens == 0
    assert counts.generated_tokens == 18
    assert counts.replayed_tokens == (64 - 24 + 3) + (24 + 16 + 2)
    assert (health.status, health.ok) == ("ready", True)
    assert "engine restarts: 1, the last one " in health.reason
    assert "OSError('once')" in health.reason


@pytest.mark.parametrize("length", [1, 30, 47])
async def test_a_poisonous_request_fails_alone(length: int) -> None:
    """It breaks every step in which it comes to this length, prompt included."""
    marker = [251, 252, 253]
    engine = FaultyEngine(n_parallel=17)
    engine.fails = lambda plan: (
        ValueError("poison")
        if any(t[:3] == marker and len(t) >= length for t in engine.tokens_after(plan))
        else None
    )
    bad = asyncio.Event()
    async with fake_batcher(engine, batch_size=17, batch_timeout=60.0, n_batch=64) as batcher:

        async def poison() -> None:
            with pytest.raises(EngineFailedError, match="alone in its step") as caught:
                await batcher.generate(marker * 10, max_tokens=40, ignore_eos=True)
            assert isinstance(caught.value.__cause__, ValueError)
            bad.set()

        others = [batcher.generate(prompts(16)[i], params(i)) for i in range(16)]
        *together, _ = await asyncio.gather(*others[:8], *others[8:], poison())
        assert bad.is_set()
        assert batcher.health().ok
        counts = batcher.statistics()
    assert (counts.restarts, counts.failed, counts.completed) == (2, 1, 16)
    async with fake_batcher() as batcher:
        alone = [await batcher.generate(prompts(16)[i], params(i)) for i in range(16)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert [c.logprobs for c in together] == [c.logprobs for c in alone]


async def test_past_the_intensity_everybody_fails() -> None:
    broken = threading.Event()
    engine = FaultyEngine(lambda plan: MemoryError("no room") if broken.is_set() else None)
    async with fake_batcher(engine, max_restarts=3) as batcher:
        long = {"max_tokens": 4000, "ignore_eos": True}
        tasks = [asyncio.create_task(batcher.generate(f"{i}", **long)) for i in range(20)]
        await until(lambda: batcher.statistics().generated_tokens > 30)
        broken.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {EngineFailedError}
        assert all(isinstance(result.__cause__, MemoryError) for result in results)
        assert any("max_restarts = 3 times in restart_window" in str(r) for r in results)
        assert (batcher.health().status, batcher.health().ok) == ("failed", False)
        assert "no room" in batcher.health().reason
        with pytest.raises(EngineFailedError, match="no room"):
            await batcher.generate(PROMPT)
        with pytest.raises(EngineFailedError, match="no room"):
            await anext(batcher.stream(PROMPT))
        assert (batcher.statistics().restarts, batcher.statistics().failed) == (3, 20)
    assert engine.n_restarts == 3
    assert engine.closed


async def test_failures_that_are_far_apart_are_survived_for_ever() -> None:
    clock = FakeClock()

    def fails(plan: StepPlan) -> BaseException | None:
        clock.advance(10.0)
        return OSError() if len(plan.entries) > 1 and len(engine.plans) % 4 == 0 else None

    engine = FaultyEngine(fails)
    options = {"max_restarts": 2, "restart_window": 25.0, "step_timeout": None, "batch_size": 3}
    async with fake_batcher(engine, clock=clock, **options) as batcher:
        await asyncio.gather(
            *(batcher.generate(f"{i}", max_tokens=60, ignore_eos=True) for i in range(3))
        )
        assert batcher.statistics().restarts > 5
        assert batcher.statistics().completed == 3


@pytest.mark.parametrize("n_failing", [1, 2, 99])
async def test_a_restart_that_fails_is_one_more_failure(n_failing: int) -> None:
    def before_restart() -> None:
        if engine.n_restarts <= n_failing:
            raise OSError("the restart failed")

    engine = FaultyEngine(once(3), before_restart)
    async with fake_batcher(engine, batch_size=2, max_restarts=3) as batcher:
        results = await asyncio.gather(
            *(batcher.generate(prompts(2)[i], params(i)) for i in range(2)),
            return_exceptions=True,
        )
        if n_failing < 3:
            assert [type(result) for result in results] == [Completion] * 2
            assert batcher.statistics().restarts == n_failing + 1
        else:
            assert [type(result) for result in results] == [EngineFailedError] * 2
            assert "the restart failed" in batcher.health().reason
            assert batcher.health().status == "failed"
    assert engine.closed


async def test_an_engine_that_breaks_between_steps_is_restarted_too() -> None:
    engine = FaultyEngine()
    remove = engine.seq_remove
    calls: list[object] = []

    def broken_once(seq_id: int) -> None:
        calls.append(seq_id)
        if len(calls) == 3:
            raise OSError("the index is gone")
        remove(seq_id)

    engine.seq_remove = broken_once
    async with fake_batcher(engine) as batcher:
        together = await asyncio.gather(
            *(batcher.generate(prompts(5)[i], params(i)) for i in range(5))
        )
        assert batcher.statistics().restarts == 1
    async with fake_batcher() as batcher:
        alone = [await batcher.generate(prompts(5)[i], params(i)) for i in range(5)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]


async def test_cancel_and_deadline_during_a_restart() -> None:
    inside, go_on, clock = threading.Event(), threading.Event(), FakeClock()

    def before_restart() -> None:
        inside.set()
        wait_for(go_on)

    engine = FaultyEngine(once(6), before_restart)
    options = {"batch_size": 4, "batch_timeout": 60.0, "n_batch": 16, "clock": clock}
    async with fake_batcher(engine, **options) as batcher:
        long = {"max_tokens": 30, "ignore_eos": True}
        kept = asyncio.create_task(batcher.generate([1], **long))
        cancelled = asyncio.create_task(batcher.generate([2], **long))
        late = asyncio.create_task(batcher.generate([3], timeout=5.0, **long))
        late_prefill = asyncio.create_task(batcher.generate([4] * 200, timeout=5.0, **long))
        await until(inside.is_set)
        assert "being restarted after OSError('once')" in batcher.health().reason
        assert batcher.health().ok
        submitted = asyncio.create_task(batcher.generate([5], **long))
        cancelled.cancel()
        await until(lambda: batcher.statistics().cancelled == 1)
        clock.advance(6.0)
        go_on.set()
        with pytest.raises(DeadlineExceededError):
            await late_prefill
        ended = await late
        assert ended.finish_reason == "deadline"
        assert 0 < len(ended.token_ids) < 30
        results = [await kept, await submitted]
        assert batcher.statistics().restarts == 1
        await until(lambda: engine.used_sequences == 0)
    async with fake_batcher() as batcher:
        assert [c.token_ids for c in results] == [
            (await batcher.generate([i], **long)).token_ids for i in (1, 5)
        ]


@pytest.mark.parametrize("drain", [True, False])
async def test_close_during_a_restart(drain: bool) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def before_restart() -> None:
        inside.set()
        wait_for(go_on)

    engine = FaultyEngine(once(3), before_restart, n_parallel=2)
    batcher = fake_batcher(engine)
    await batcher.start()
    tasks = [asyncio.create_task(batcher.generate(f"{i}", max_tokens=9)) for i in range(4)]
    await until(inside.is_set)
    closing = asyncio.create_task(batcher.close(drain=drain))
    if not drain:
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [BatcherClosedError] * 4
    assert not closing.done()
    go_on.set()
    await closing
    if drain:
        assert [type(result) for result in await asyncio.gather(*tasks)] == [Completion] * 4
    assert engine.closed
    assert batcher.health().status == "closed"


@pytest.mark.parametrize("patience", [None, 0.05])
async def test_draining_while_the_engine_fails(patience: float | None) -> None:
    engine = FaultyEngine(random_failures(1, 0.5), step_delay=0.001)
    batcher = fake_batcher(engine, max_restarts=20)
    await batcher.start()
    tasks = [
        asyncio.create_task(batcher.generate(f"{i}", max_tokens=1000, ignore_eos=True))
        for i in range(8)
    ]
    await until(lambda: batcher.statistics().running > 0)
    async with asyncio.timeout(PATIENCE):
        await batcher.close(timeout=patience)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(r) for r in results} <= {Completion, EngineFailedError, BatcherClosedError}
    assert engine.closed


def test_many_batchers_in_several_loops_fail_and_recover_at_the_same_time() -> None:
    async def serve(seed: int) -> list[object]:
        engines = [FaultyEngine(random_failures(seed, 0.3)), FakeEngine()]
        batchers = [fake_batcher(engine, max_restarts=10_000) for engine in engines]
        for batcher in batchers:
            await batcher.start()
        together = await asyncio.gather(
            *(batcher.generate(prompts(8)[i], params(i)) for batcher in batchers for i in range(8))
        )
        assert batchers[0].statistics().restarts > 0
        assert batchers[1].statistics().restarts == 0
        await asyncio.gather(*(batcher.close() for batcher in batchers))
        return [(c.token_ids, c.logprobs) for c in together]

    results: dict[int, list[object]] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: results.update({seed: asyncio.run(serve(seed))}))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(results) == 4
    assert all(result == results[0] for result in results.values())
    assert results[0][:8] == results[0][8:]


@pytest.mark.parametrize("where", ["in a step", "between steps"])
async def test_draining_is_over_when_the_engine_has_failed(where: str) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def fails(plan: StepPlan) -> BaseException | None:
        inside.set()
        wait_for(go_on)
        return OSError("broken") if where == "in a step" else None

    def no_index(seq_id: int) -> None:
        raise OSError("broken")

    engine = FaultyEngine(fails, n_parallel=1)
    batcher = fake_batcher(engine, max_restarts=1)
    await batcher.start()
    tasks = [asyncio.create_task(batcher.generate(f"{i}", max_tokens=3)) for i in range(3)]
    await until(inside.is_set)
    closing = asyncio.create_task(batcher.close())
    await until(lambda: batcher.health().status == "closing")
    if where == "between steps":
        engine.seq_remove = no_index
    go_on.set()
    async with asyncio.timeout(PATIENCE):
        await closing
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[-1], EngineFailedError)
    assert engine.closed


async def test_a_defect_in_taking_a_request_is_that_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit = Scheduler.submit

    def defective(self: Scheduler, request: Request, now: float) -> None:
        if request.prompt == (66,):
            raise ZeroDivisionError("a defect")
        submit(self, request, now)

    monkeypatch.setattr(Scheduler, "submit", defective)
    async with fake_batcher() as batcher:
        task = asyncio.create_task(batcher.generate(prompts(1)[0], params(4)))
        for n in (1, 2):
            with pytest.raises(EngineError, match="a defect"):
                await batcher.generate([66], n=n, temperature=1.0)
        disturbed = await task
        assert batcher.statistics().restarts == 0
        assert batcher.statistics().rejected >= 2
        assert batcher.health().ok
    async with fake_batcher() as batcher:
        assert outputs([disturbed]) == outputs([await batcher.generate(prompts(1)[0], params(4))])


async def test_a_defect_while_the_engine_computes_waits_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def defective(self: Scheduler, tokens: tuple[int, ...], namespace: str = "") -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Scheduler, "add_prefix", defective)
    inside, go_on = threading.Event(), threading.Event()

    def block(plan: StepPlan) -> None:
        if len(engine.plans) == 3:
            inside.set()
            wait_for(go_on)

    engine = FaultyEngine(before_step=block)
    async with fake_batcher(engine, batch_size=2) as batcher:
        tasks = [
            asyncio.create_task(batcher.generate(prompts(2)[i], params(i + 4))) for i in range(2)
        ]
        await until(inside.is_set)
        batcher._running_service()._mailbox.put(SharePrefix((66,)))  # of nobody
        await batcher.detokenize([66])
        assert engine.n_restarts == 0
        go_on.set()
        together = await asyncio.gather(*tasks)
        assert engine.n_restarts == 1
        assert "ZeroDivisionError('a defect')" in batcher.health().reason
        assert batcher.statistics().rejected == 0
    async with fake_batcher() as batcher:
        alone = [await batcher.generate(prompts(2)[i], params(i + 4)) for i in range(2)]
    assert outputs(together) == outputs(alone)

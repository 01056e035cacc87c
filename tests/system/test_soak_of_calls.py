"""Scores, vectors, samples and prefixes at random, cancelled, late and across failures."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from batcher_helpers import until

from pybatcher import (
    Batcher,
    DeadlineExceededError,
    NoFreeSequenceError,
    SamplingParams,
)
from pybatcher.calls.reply import sample_seed
from pybatcher.scheduling import StepPlan
from pybatcher.testing import FakeEngine, fake_batcher
from pybatcher.testing.fake_model import FakeModel, FakeSampling

N_CALLERS = 800
MODEL = FakeModel(258, 8)
BEGINNINGS = [[(i * 7 + n) % 250 for i in range(50 + 20 * n)] for n in range(4)]


async def score(batcher: Batcher, rng: random.Random, prompt: list[int]) -> None:
    endings = [[rng.randrange(250) for _ in range(rng.randint(1, 9))] for _ in range(3)]
    scores = await batcher.score(prompt, endings, priority=rng.randint(-3, 3))
    for ending, made in zip(endings, scores, strict=True):
        wanted = (MODEL.logprob(prompt + ending[:i], token) for i, token in enumerate(ending))
        assert made.token_logprobs == tuple(wanted)


async def embed(batcher: Batcher, rng: random.Random, prompt: list[int]) -> None:
    pooling = rng.choice(["mean", "last"])
    texts = [prompt[rng.randrange(20) :] for _ in range(2)]
    for text, made in zip(texts, await batcher.embed(texts, pooling=pooling), strict=True):
        first = 0 if pooling == "mean" else len(text) - 1
        assert made.vector.tolist() == MODEL.pooled(text, first).tolist()


async def sample(batcher: Batcher, rng: random.Random, prompt: list[int]) -> None:
    n, seed, timeout = rng.randint(2, 4), rng.randrange(2**64), rng.choice([None, None, 0.05])
    options = {"n": n, "temperature": 1.0, "seed": seed, "ignore_eos": True, "timeout": timeout}
    tokens: list[list[int]] = [[] for _ in range(n)]
    async for piece in batcher.stream(prompt, max_tokens=rng.randint(1, 150), **options):
        tokens[piece.index] += piece.token_ids
        if rng.random() < 0.005:
            break
    for i, drawn in enumerate(tokens):
        sampling = FakeSampling(params=SamplingParams(temperature=1.0), seed=sample_seed(seed, i))
        for position, token in enumerate(drawn):
            before = prompt + drawn[:position]
            assert MODEL.draw(before, sampling).token_id == token


async def hold_a_prefix(batcher: Batcher, rng: random.Random, prompt: list[int]) -> None:
    beginning = rng.choice(BEGINNINGS)
    name = rng.choice([None, f"beginning {len(beginning)}"])
    try:
        info = await batcher.add_prefix(beginning, name=name)
    except NoFreeSequenceError:
        return
    try:
        await batcher.generate([*beginning, *prompt[:9]], max_tokens=2)
    finally:
        await batcher.remove_prefix(str(info.name))


CALLS = [score, embed, sample, hold_a_prefix]


async def call(batcher: Batcher, number: int) -> str:
    """One caller; how it ended."""
    rng = random.Random(number)
    await asyncio.sleep(rng.random())
    prompt = [*rng.choice(BEGINNINGS)[: rng.randint(30, 110)], *rng.choices(range(250), k=8)]
    what = rng.choice(CALLS)
    try:
        async with asyncio.timeout(rng.random() * 0.1 if rng.random() < 0.3 else None):
            await what(batcher, rng, prompt)
    except DeadlineExceededError:
        return "late"
    except TimeoutError:
        return "cancelled"
    return what.__name__


async def test_nothing_is_wrong_and_nothing_is_left() -> None:
    failing = random.Random(1)

    def fail(plan: StepPlan) -> None:
        if len(plan.entries) > 1 and failing.random() < 0.01:
            raise OSError("a cable was pulled")

    engine = FakeEngine(n_ctx=768, n_parallel=10, before_step=fail)
    options = {"n_batch": 160, "output_reserve": 0, "max_prefixes": 2, "max_restarts": 10**6}
    async with fake_batcher(engine, **options) as batcher:
        endings = Counter(await asyncio.gather(*(call(batcher, i) for i in range(N_CALLERS))))
        await until(lambda: batcher.statistics().running == batcher.statistics().queued == 0)
        await until(lambda: engine.used_sequences == 0)
        assert batcher.prefixes() == ()
        counts = batcher.statistics()
        assert counts.kv_free_blocks + counts.kv_cached_blocks == counts.kv_total_blocks
        assert counts.submitted == counts.completed + counts.cancelled + counts.expired
        assert counts.restarts > 5
        assert counts.preemptions > 5
    assert min(endings[what.__name__] for what in CALLS) > 10, endings

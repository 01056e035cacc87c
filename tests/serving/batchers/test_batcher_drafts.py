"""The batcher with drafts and without: the same answers, in fewer steps."""

from __future__ import annotations

import asyncio
import time

import pytest
from batcher_helpers import until

from pybatcher import Batcher, BatcherStatistics, Completion, SamplingParams
from pybatcher.scheduling.step_time import StepCost
from pybatcher.testing import FakeClock

REPETITIVE = "The red fox ran to the old mill. " * 6
PROMPTS = [
    REPETITIVE,
    "Tim said: I like my kite. Tim said: I like my kite. Tim said:",
    "one two three four " * 10,
    "Once upon a time",
]
FEW_WORDS = dict.fromkeys((300, 410, 520), 40.0)  # with so few, any text repeats itself
WAYS = {
    "greedy": SamplingParams(max_tokens=60, logit_bias=FEW_WORDS),
    "sampled": SamplingParams(
        max_tokens=60, temperature=0.9, seed=3, logit_bias=FEW_WORDS, logprobs=3
    ),
    "penalised": SamplingParams(
        max_tokens=60,
        temperature=0.3,
        seed=4,
        repetition_penalty=1.2,
        frequency_penalty=0.1,
        logit_bias=FEW_WORDS,
        logprobs=1,
    ),
    "its own words": SamplingParams(max_tokens=60, min_tokens=50),
}


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make drafts worth their rows, however short the steps are."""
    monkeypatch.setattr(StepCost, "rows_of_an_empty_step", 30.0)
    monkeypatch.setattr(StepCost, "row", 0.0)


def outputs(completions: list[Completion]) -> list[object]:
    return [(c.text, c.token_ids, c.finish_reason, c.usage, c.logprobs) for c in completions]


async def ask(
    prompts: list[str], params: SamplingParams, **options: object
) -> tuple[list[object], BatcherStatistics]:
    async with Batcher(n_threads=1, **options) as batcher:
        answers = await asyncio.gather(*(batcher.generate(p, params) for p in prompts))
        return outputs(list(answers)), batcher.statistics()


async def ask_in_turn(
    prompts: list[str], params: SamplingParams, **options: object
) -> list[object]:
    """Each alone: they share no beginning, so that nothing is cached for the next one."""
    async with Batcher(n_threads=1, **options) as batcher:
        return outputs([await batcher.generate(prompt, params) for prompt in prompts])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("way", WAYS)
async def test_answers_do_not_depend_on_drafts(way: str, dtype: str) -> None:
    plain, without = await ask(PROMPTS, WAYS[way], dtype=dtype, max_draft_tokens=0)
    assert without.proposed_tokens == 0
    for max_draft_tokens, n_batch in ((1, 512), (8, 512), (64, 512), (8, 9)):
        options = {"max_draft_tokens": max_draft_tokens, "n_batch": n_batch, "dtype": dtype}
        drafted, counts = await ask(PROMPTS, WAYS[way], **options)
        assert drafted == plain
        assert counts.accepted_tokens <= counts.proposed_tokens
        assert counts.accepted_tokens > 0 or way == "its own words"
        assert await ask_in_turn(PROMPTS, WAYS[way], **options) == plain


async def test_fewer_steps_where_a_text_repeats_itself() -> None:
    _, without = await ask([REPETITIVE], WAYS["greedy"], max_draft_tokens=0)
    _, counts = await ask([REPETITIVE], WAYS["greedy"], max_draft_tokens=8)
    assert counts.steps < without.steps * 0.7
    assert counts.steps + counts.accepted_tokens == without.steps


@pytest.mark.slow
async def test_a_stop_text_in_the_middle_of_what_a_step_gave() -> None:
    """What was drawn after it is dropped: text, tokens, pieces."""
    async with Batcher(n_threads=1, max_draft_tokens=0) as batcher:
        whole = await batcher.generate(REPETITIVE, WAYS["greedy"])
    stops = [whole.text[:n] for n in range(5, len(whole.text), 7)]  # nowhere before that
    results = []
    for max_draft_tokens in (0, 8):
        async with Batcher(n_threads=1, max_draft_tokens=max_draft_tokens) as batcher:
            answers = [
                await batcher.generate(REPETITIVE, WAYS["greedy"], stop=(stop,)) for stop in stops
            ]
            counts = batcher.statistics()
            results.append((outputs(answers), counts.completed, counts.generated_tokens))
            assert counts.generated_tokens == sum(a.usage.completion_tokens for a in answers)
            drawn = batcher.runtime.engine.statistics()["sampled_tokens"]
            assert (drawn > counts.generated_tokens) == (max_draft_tokens > 0)
    assert results[0] == results[1]


async def test_the_pieces_of_a_stream_are_the_same() -> None:
    streams = []
    for max_draft_tokens in (0, 8):
        async with Batcher(n_threads=1, max_draft_tokens=max_draft_tokens) as batcher:
            stream = batcher.stream(REPETITIVE, WAYS["sampled"])
            streams.append([piece async for piece in stream])
    assert streams[0] == streams[1]


async def test_leaving_while_drafts_are_verified() -> None:
    """No KV is left (the fixture looks), and the others go on as before."""
    plain, _ = await ask([PROMPTS[1]], WAYS["greedy"], max_draft_tokens=0)
    batcher = Batcher(n_threads=1, max_draft_tokens=8, step_timeout=None)
    later = FakeClock()  # than the time really is
    batcher._clock = lambda: time.monotonic() + later()
    async with batcher:
        long = {"max_tokens": 900, "logit_bias": FEW_WORDS}
        leaving = asyncio.create_task(batcher.generate(REPETITIVE, **long))
        staying = asyncio.create_task(batcher.generate(PROMPTS[1], WAYS["greedy"]))
        late = batcher.stream(REPETITIVE, **long, timeout=1000.0)
        await anext(late)
        await until(lambda: batcher.statistics().accepted_tokens > 0)
        leaving.cancel()
        later.advance(1000.0)
        assert outputs([await staying]) == plain
        last = [piece async for piece in late][-1]
        assert last.finish_reason in ("deadline", "length")
        await until(lambda: batcher.statistics().running == 0)
        assert leaving.cancelled()


async def test_a_full_context() -> None:
    """Where positions and KV are all promised, drafts take none besides."""
    params = SamplingParams(max_tokens=500, logit_bias=FEW_WORDS)
    options = {"n_ctx": 256, "n_parallel": 2, "block_size": 16}
    plain, _ = await ask([REPETITIVE, PROMPTS[1]], params, max_draft_tokens=0, **options)
    drafted, counts = await ask([REPETITIVE, PROMPTS[1]], params, max_draft_tokens=8, **options)
    assert drafted == plain
    assert counts.accepted_tokens > 0

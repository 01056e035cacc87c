"""`score` and `embed`: what callers get, from every way in, and how it ends."""

from __future__ import annotations

import asyncio
import math
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from batcher_helpers import until, wait_for

from pybatcher import (
    BatcherClosedError,
    BlockingBatcher,
    DeadlineExceededError,
    EngineFailedError,
    InvalidRequestError,
    QueueFullError,
    RequestEvent,
    RequestTooLongError,
)
from pybatcher.scheduling import StepPlan
from pybatcher.testing import FakeClock, FakeEngine, byte_tokenizer, fake_batcher
from pybatcher.testing.fake_model import FakeModel

PROMPT = "Is the sky blue? I would say that the answer to this question is: "
ANSWERS = ["yes", "no", "perhaps"]


def ids(text: str, *, begins: bool = True) -> tuple[int, ...]:
    return tuple(byte_tokenizer().encode(text, add_special_tokens=begins))


def expected(prompt: str, continuation: str) -> tuple[float, ...]:
    model, begin, targets = FakeModel(258, 8), ids(prompt), ids(continuation, begins=False)
    return tuple(model.logprob(begin + targets[:i], t) for i, t in enumerate(targets))


async def test_score() -> None:
    engine = FakeEngine(n_parallel=8)
    async with fake_batcher(engine) as batcher:
        scores = await batcher.score(PROMPT, ANSWERS)
        assert batcher.statistics().completed == 3
    for answer, score in zip(ANSWERS, scores, strict=True):
        assert score.token_ids == ids(answer, begins=False)
        assert score.token_logprobs == expected(PROMPT, answer)
        assert score.logprob == math.fsum(score.token_logprobs)
    # All but the prompt's last token once; that one, and what follows, for each of them.
    computed = engine.statistics()["computed_tokens"]
    assert computed == len(ids(PROMPT)) - 1 + sum(len(answer) for answer in ANSWERS)


async def test_score_is_of_what_generate_would_draw() -> None:
    async with fake_batcher() as batcher:
        drawn = await batcher.generate(PROMPT, max_tokens=20, logprobs=0, ignore_eos=True)
        (score,) = await batcher.score(PROMPT, [drawn.token_ids])
    assert drawn.logprobs is not None
    assert list(score.token_logprobs) == [entry.logprob for entry in drawn.logprobs]


async def test_likelier_tokens_are_those_of_a_draw_however_the_work_is_cut() -> None:
    continuation = ids("perhaps it is not", begins=False)
    async with fake_batcher() as batcher:
        (score,) = await batcher.score(PROMPT, [continuation], top_logprobs=4)
    model, begin = FakeModel(258, 8), ids(PROMPT)
    assert score.top_logprobs == tuple(
        model.top(begin + continuation[:i], 4) for i in range(len(continuation))
    )
    small = FakeEngine(n_ctx=128, n_parallel=2)
    async with fake_batcher(small, n_batch=7, output_reserve=0, watermark=0.0) as batcher:
        other = asyncio.create_task(batcher.generate("x", max_tokens=100, ignore_eos=True))
        tasks = [batcher.score(PROMPT, [continuation], top_logprobs=n) for n in (4, 0, 4)]
        one, plain, again = [found[0] for found in await asyncio.gather(*tasks)]
        await other
    assert one == again == score
    assert plain.token_logprobs == score.token_logprobs
    assert plain.top_logprobs == ()


async def test_embed() -> None:
    async with fake_batcher(n_batch=100) as batcher:
        for pooling in ("last", "mean"):
            first, second = await batcher.embed([PROMPT, ids("a cat")], pooling=pooling)
            assert first.vector.dtype == np.float32
            assert first.vector.shape == (8,)
            for text, made in ((PROMPT, first), ("a cat", second)):
                tokens = ids(text)
                begin = 0 if pooling == "mean" else len(tokens) - 1
                assert made.vector.tolist() == FakeModel(258, 8).pooled(tokens, begin).tolist()
                assert made.prompt_tokens == len(tokens)
        (again,) = await batcher.embed([PROMPT])
        assert again.cached_tokens > 0
        (default,) = await batcher.embed([PROMPT], pooling="last")
        assert np.array_equal(again.vector, default.vector)
        alone = await batcher.embed(PROMPT)
        assert np.array_equal(again.vector, alone.vector)


async def test_the_system_prompt_comes_before_prompts_and_not_before_texts() -> None:
    async with fake_batcher(system_prompt="Be kind. ") as batcher:
        (score,) = await batcher.score("x", ["yes"])
        (embedding,) = await batcher.embed(["x"])
    assert score.token_logprobs == expected("Be kind. x", "yes")
    assert embedding.prompt_tokens == len(ids("x"))


async def test_an_input_too_large_is_a_typed_error_and_the_engine_lives() -> None:
    async with fake_batcher(n_batch=64) as batcher:
        with pytest.raises(RequestTooLongError, match=r"input too large: .* n_batch = 64") as told:
            await batcher.embed(["short", "x" * 64], pooling="mean")
        assert told.value.field == "texts[1]"
        assert len(await batcher.embed(["x" * 63], pooling="mean")) == 1
        assert len(await batcher.embed(["x" * 640])) == 1
        assert batcher.statistics().rejected == 1
        await until(lambda: batcher.statistics().running == batcher.statistics().queued == 0)


async def test_a_text_too_long_is_named() -> None:
    async with fake_batcher(n_ctx=64) as batcher:
        for long in ([5] * 99, "x" * 99):
            with pytest.raises(
                RequestTooLongError, match=r"^texts\[1\] has \d+ tok.*: short"
            ) as told:
                await batcher.embed(["a", long])
            assert told.value.field == "texts[1]"


async def test_a_prompt_too_long_is_told_with_all_its_tokens() -> None:
    async with fake_batcher(n_ctx=64) as batcher:
        positions = (await batcher.model_info()).max_sequence_length
        with pytest.raises(RequestTooLongError, match=rf"has {positions + 40} tokens"):
            await batcher.score([5] * (positions + 30), [[6] * 10])
        with pytest.raises(RequestTooLongError, match=rf"has {positions + 3} tokens"):
            await batcher.generate([5] * (positions + 3), prompt_logprobs=True, max_tokens=0)


BAD: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("score", (PROMPT, []), {}, r"continuations is \[\]; it must be a list of at least one"),
    ("score", (PROMPT, "yes"), {}, "continuations is 'yes'"),
    ("score", (PROMPT, ["a", ""]), {}, r"continuations\[1\] is ''"),
    ("score", (PROMPT, [[1, 999]]), {}, r"continuations\[0\]\[1\] is 999"),
    ("score", ("", ["a"]), {}, "prompt is ''"),
    ("score", (PROMPT, ["a"]), {"priority": 1.5}, "priority is 1.5"),
    ("score", (PROMPT, ["a"]), {"timeout": 0}, "timeout is 0"),
    ("score", (PROMPT, ["a"]), {"top_logprobs": 33}, "top_logprobs is 33; .* from 0 to 32"),
    ("score", (PROMPT, ["a"]), {"top_logprobs": None}, "top_logprobs is None"),
    ("embed", (b"text",), {}, "texts is b'text'"),
    ("embed", ([],), {}, r"texts is \[\]; it must be a list of at least one"),
    ("embed", ("",), {}, r"texts\[0\] is ''"),
    ("embed", ([""],), {}, r"texts\[0\] is ''"),
    ("embed", (["a"],), {"pooling": "max"}, "pooling is 'max'; it must be 'last', 'mean' or"),
    ("embed", (["a"],), {"namespace": 1}, "namespace is 1"),
]


@pytest.mark.parametrize(("method", "positional", "others", "message"), BAD)
async def test_bad_arguments(
    method: str, positional: tuple[Any, ...], others: dict[str, Any], message: str
) -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match=message):
            await getattr(batcher, method)(*positional, **others)
        assert batcher.statistics().submitted == 0


async def test_many_are_sent_without_holding_up_the_loop() -> None:
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=4, before_step=lambda plan: wait_for(go_on))
    async with fake_batcher(engine) as batcher:
        task = asyncio.create_task(batcher.score(PROMPT, [f"{i}" for i in range(500)]))
        seen = [0]
        while seen[-1] < 500:
            await asyncio.sleep(0)
            seen.append(batcher.statistics().submitted)
        go_on.set()
        assert [len(score.token_ids) for score in await task] == [len(str(i)) for i in range(500)]
    assert max(later - sooner for sooner, later in pairwise(seen)) <= 64


@pytest.mark.parametrize("options", [{"max_queue_requests": 4}, {"max_queue_tokens": 60}])
async def test_any_number_goes_through_a_small_queue(options: dict[str, int]) -> None:
    continuations = ["a", "bc", [5, 6, 7]] * 40
    async with fake_batcher() as batcher:
        expected = await batcher.score(PROMPT, continuations)
    async with fake_batcher(**options) as batcher:
        assert await batcher.score(PROMPT, continuations) == expected
        assert len(await batcher.embed(["text"] * 300)) == 300
        assert batcher.statistics().rejected == 0


async def test_more_than_a_queue_holds_are_embedded() -> None:
    async with fake_batcher(max_queue_requests=256) as batcher:
        assert len(await batcher.embed(["text"] * 600)) == 600


async def test_a_queue_that_others_have_filled_ends_the_sending() -> None:
    async with fake_batcher(max_queue_requests=2, batch_timeout=60.0, batch_size=500) as batcher:
        others = [asyncio.create_task(batcher.generate("x")) for _ in range(2)]
        await until(lambda: batcher.statistics().queued == 2)
        with pytest.raises(QueueFullError):
            await batcher.score(PROMPT, ["a"] * 500)
        assert batcher.statistics().rejected == 1
        for other in others:
            other.cancel()
        await asyncio.wait(others)


async def test_cancelled_it_cancels_all_of_them() -> None:
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=2, before_step=lambda plan: wait_for(go_on))
    async with fake_batcher(engine) as batcher:
        task = asyncio.create_task(batcher.score(PROMPT, ANSWERS))
        await until(lambda: batcher.statistics().running == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: batcher.statistics().cancelled == 3)
        go_on.set()
    assert engine.used_sequences == 0


async def test_past_its_timeout_it_raises() -> None:
    clock, go_on = FakeClock(), threading.Event()
    engine = FakeEngine(n_parallel=1, before_step=lambda plan: wait_for(go_on))
    async with fake_batcher(engine, clock=clock) as batcher:
        task = asyncio.create_task(batcher.embed(["a" * 2000, "b"], timeout=1.0))
        await until(lambda: batcher.statistics().submitted == 2)
        await until(lambda: len(engine.plans) > 0 or clock.advance(0.01) is not None)
        clock.advance(2.0)
        go_on.set()
        with pytest.raises(DeadlineExceededError, match="raise timeout"):
            await task
        await until(lambda: batcher.statistics().running == batcher.statistics().queued == 0)


async def test_if_one_fails_all_do() -> None:
    engine = FakeEngine(n_parallel=8)
    engine.fail_sequences = lambda plan: {plan.entries[-1].seq_id: "it is not finite"}
    async with fake_batcher(engine) as batcher:
        with pytest.raises(EngineFailedError, match="it is not finite"):
            await batcher.embed(["a", "b", "c"])
        counts = batcher.statistics()
        assert counts.submitted == 3
        assert counts.failed >= 1
        await until(lambda: batcher.statistics().running == 0)


async def test_a_restart_of_the_engine_leaves_no_trace() -> None:
    engine = FakeEngine(n_parallel=4)

    def fail(plan: StepPlan) -> None:
        if len(engine.plans) == 3:
            raise OSError("a cable was pulled")

    engine.before_step = fail
    async with fake_batcher(engine, n_batch=24) as batcher:
        scores = await batcher.score(PROMPT, ANSWERS)
        assert batcher.statistics().restarts == 1
    assert [score.token_logprobs for score in scores] == [expected(PROMPT, a) for a in ANSWERS]


async def test_how_it_ended_is_told() -> None:
    events: list[RequestEvent] = []
    async with fake_batcher() as batcher:
        batcher.attach(lambda e: events.append(e) if isinstance(e, RequestEvent) else None)
        await batcher.score("a", ["b"], namespace="tenant", priority=2)
        await batcher.embed(["a"])
    assert [(e.finish_reason, e.namespace, e.priority) for e in events] == [
        ("scored", "tenant", 2),
        ("embedded", "", 0),
    ]
    assert [(e.prompt_tokens, e.generated_tokens, e.ttft) for e in events] == [(2, 0, None)] * 2


async def test_from_other_threads_and_after_the_end() -> None:
    async with fake_batcher() as batcher:
        remote = batcher.threadsafe
        scores = await asyncio.wrap_future(remote.score(PROMPT, ANSWERS))
        assert scores == await batcher.score(PROMPT, ANSWERS)
        (one,) = await asyncio.wrap_future(remote.embed([PROMPT], pooling="mean"))
        assert one.prompt_tokens == len(ids(PROMPT))
        alone = await asyncio.wrap_future(remote.embed(PROMPT, pooling="mean"))
        assert np.array_equal(one.vector, alone.vector)
    with pytest.raises(BatcherClosedError):
        await batcher.score(PROMPT, ANSWERS)
    with pytest.raises(BatcherClosedError):
        await batcher.embed([PROMPT])


async def test_a_close_without_draining_fails_it() -> None:
    go_on = threading.Event()
    engine = FakeEngine(before_step=lambda plan: wait_for(go_on))
    batcher = fake_batcher(engine)
    await batcher.start()
    task = asyncio.create_task(batcher.embed([PROMPT] * 20))
    await until(lambda: len(engine.plans) == 1)
    closing = asyncio.create_task(batcher.close(drain=False))
    await asyncio.sleep(0)
    go_on.set()
    await closing
    with pytest.raises(BatcherClosedError):
        await task


def test_without_asyncio() -> None:
    with BlockingBatcher.over(fake_batcher()) as batcher:
        scores = batcher.score(PROMPT, ANSWERS, timeout=60.0, priority=1, top_logprobs=1)
        assert [len(score.top_logprobs) for score in scores] == list(map(len, ANSWERS))
        assert [score.token_logprobs for score in scores] == [expected(PROMPT, a) for a in ANSWERS]
        alone = batcher.embed(PROMPT, pooling="mean")
        (embedding,) = batcher.embed([PROMPT], pooling="mean", namespace="tenant")
        assert np.array_equal(embedding.vector, alone.vector)
        assert embedding.vector.shape == (8,)

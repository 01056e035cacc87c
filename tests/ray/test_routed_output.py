"""Outputs whose replicas die, against the same outputs of one batcher that lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from batcher_helpers import until
from replicas_double import ReplicasDouble, replicas_double

from pybatcher import Completion, RequestEvent, TelemetryEvent
from pybatcher.errors import DeadlineExceededError, EngineFailedError, InvalidRequestError
from pybatcher.ray import ReplicatedBatcher

PROMPT = "the quick brown fox jumps over the lazy dog and " * 3
LONG: dict[str, Any] = {"max_tokens": 40, "seed": 7, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture
async def replicas() -> AsyncIterator[ReplicasDouble]:
    async with replicas_double() as made:
        yield made


@pytest.fixture
async def batcher(replicas: ReplicasDouble) -> AsyncIterator[ReplicatedBatcher]:
    async with ReplicatedBatcher(replicas) as made:
        yield made


async def streamed(batcher: Any, **options: Any) -> tuple[str, list[int], Completion]:
    texts, tokens = [], []
    stream = batcher.stream(PROMPT, **{**LONG, **options})
    async for piece in stream:
        texts.append(piece.text)
        tokens += piece.token_ids
    return "".join(texts), tokens, stream.completion


def same(one: Completion, other: Completion) -> None:
    fields = ("text", "token_ids", "finish_reason", "logprobs")
    assert [getattr(one, name) for name in fields] == [getattr(other, name) for name in fields]


@pytest.mark.parametrize("lives", [[1], [2], [10], [3, 4, 2, 5], [0, 0], [1, 1]])
async def test_an_output_goes_on_elsewhere_with_the_same_tokens(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher, lives: list[int]
) -> None:
    expected = await replicas.batchers[0].generate(PROMPT, **LONG, logprobs=2)
    replicas.lives = list(lives)
    text, tokens, made = await streamed(batcher, logprobs=2)
    same(made, expected)
    assert (text, tokens) == (expected.text, list(expected.token_ids))
    assert len(replicas.routings) == len(lives) + 1
    assert made.usage.completion_tokens == 40


async def test_what_was_delivered_goes_along(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    replicas.lives = [6]
    _, tokens, _ = await streamed(batcher)
    (_, _), (_, again) = replicas.params
    n_delivered = len(again["output"])
    assert 0 < n_delivered < 40
    assert list(again["output"]) == tokens[:n_delivered]
    first, second = replicas.routings
    assert first.fingerprint == ""
    assert second.fingerprint.endswith(replicas.replicas[0]._fingerprint)
    assert len(first.prefix) == len(PROMPT) // 32 * 8


async def test_samples_go_on_one_by_one(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    expected = await replicas.batchers[0].generate(PROMPT, **LONG, n=3)
    replicas.lives = [4, 1000, 9]
    made = await batcher.generate(PROMPT, **LONG, n=3)
    for one, other in zip(made.choices, expected.choices, strict=True):
        same(one, other)
    assert len(replicas.routings) == 5


async def test_a_replica_that_would_draw_other_tokens_refuses(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    replicas.replicas[1]._fingerprint = "another model"
    replicas.lives = [3]
    with pytest.raises(EngineFailedError, match=r"draws the same tokens: .*'another model'"):
        await streamed(batcher)
    replicas.lives = [0]  # without a token yet, any replica will do
    replicas.routings.clear()
    _, tokens, _ = await streamed(batcher)
    assert len(tokens) == 40


async def test_a_request_that_takes_replicas_with_it_is_given_up(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    replicas.lives = [1] * 9
    with pytest.raises(EngineFailedError, match="3 replicas were lost with this request"):
        await streamed(batcher)
    assert len(replicas.routings) == 3


async def test_a_request_with_new_tokens_between_deaths_is_not_to_blame(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    replicas.lives = [3] * 8
    _, tokens, _ = await streamed(batcher)
    assert len(tokens) == 40


async def test_a_deadline_ends_a_request_whose_replicas_are_silent(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybatcher.ray.routed_output._GRACE", 0.01)
    replicas.is_silent = True
    with pytest.raises(DeadlineExceededError, match="no token came within"):
        await streamed(batcher, timeout=0.05)


async def test_a_deadline_after_the_first_tokens_returns_these(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybatcher.ray.routed_output._GRACE", 0.01)
    stream = batcher.stream(PROMPT, **LONG, timeout=0.5)
    replicas.lives = [4]
    await anext(stream)
    replicas.is_silent = True
    async for _ in stream:
        pass
    assert stream.completion is not None
    assert stream.completion.finish_reason == "deadline"


async def test_a_cancelled_request_is_cancelled_at_its_replica(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    stream = batcher.stream(PROMPT, **{**LONG, "max_tokens": 3000})
    await anext(stream)
    stream.close()
    await until(lambda: replicas.batchers[0].statistics().cancelled == 1)
    assert replicas.batchers[0].statistics().running == 0


async def test_times_are_of_the_clock_here(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    began = asyncio.get_running_loop().time()
    replicas.lives = [5]
    for _ in range(2):  # one that went on, and one that did not
        made = (await streamed(batcher))[2].timeline
        assert began <= made.submitted <= made.admitted <= made.first_token <= made.finished
        assert len(made.token_times) == 40


async def test_each_end_is_an_event(replicas: ReplicasDouble, batcher: ReplicatedBatcher) -> None:
    events: list[TelemetryEvent] = []
    batcher.attach(events.append)
    replicas.lives = [5]
    await streamed(batcher)
    with pytest.raises(InvalidRequestError):
        await batcher.generate([10**9])
    stream = batcher.stream(PROMPT, **{**LONG, "max_tokens": 3000})
    await anext(stream)
    stream.close()
    await until(lambda: len(events) >= 2)
    first, last = (event for event in events if isinstance(event, RequestEvent))
    assert (first.finish_reason, first.generated_tokens, len(first.itl)) == ("length", 40, 39)
    assert first.ttft is not None
    assert first.prompt_tokens == len(PROMPT) + 1  # one that begins every text
    assert last.finish_reason == "cancelled"

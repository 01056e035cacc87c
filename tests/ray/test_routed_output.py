"""Outputs whose replicas die, against the same outputs of one batcher that lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import pytest
from batcher_helpers import until
from replicas_double import ReplicasDouble, replicas_double

from pybatcher import Completion, RequestEvent, TelemetryEvent
from pybatcher.calls.backpressure import CURRENT_BACKPRESSURE, Backpressure
from pybatcher.errors import (
    DeadlineExceededError,
    EngineFailedError,
    InvalidRequestError,
    QueueFullError,
)
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


async def test_what_full_replicas_refuse_is_sent_again(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    expected = await replicas.batchers[0].generate(PROMPT, **LONG)
    for replica in replicas.replicas:
        replica._most = 2
    made = await asyncio.gather(*(batcher.generate(PROMPT, **LONG) for _ in range(12)))
    for one in made:
        same(one, expected)
    assert len(replicas.routings) > 12
    assert [replica._taken for replica in replicas.replicas] == [0, 0]


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


# -- who reads -----------------------------------------------------------------------------------


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """How long an output that nobody reads stays at its replica."""
    monkeypatch.setattr("pybatcher.ray.routed_output._PATIENCE", request.param)


LEAVES_AT_ONCE = pytest.mark.parametrize("patience", [0.0], indirect=True)
STAYS = pytest.mark.parametrize("patience", [60.0], indirect=True)


def watched() -> Backpressure:
    """What all later calls of a test share."""
    backpressure = Backpressure(4)
    CURRENT_BACKPRESSURE.set(backpressure)
    return backpressure


def are_idle(replicas: ReplicasDouble) -> bool:
    return not any(one.statistics().running + one.statistics().queued for one in replicas.batchers)


@LEAVES_AT_ONCE
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.usefixtures("patience")
async def test_an_output_that_nobody_reads_leaves_its_replica_until_it_is_read(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher, n: int
) -> None:
    expected = await replicas.batchers[0].generate(PROMPT, **LONG, n=n, logprobs=2)
    backpressure = watched()
    stream = batcher.stream(PROMPT, **LONG, n=n, logprobs=2)
    piece = await anext(stream)
    texts = [piece.text if i == piece.index else "" for i in range(n)]
    for _ in range(2):  # somebody reads, to where nobody does
        await until(lambda: backpressure.is_paused and are_idle(replicas))
        while backpressure.is_paused:
            piece = await anext(stream)
            texts[piece.index] += piece.text
    async for piece in stream:
        texts[piece.index] += piece.text
    assert stream.completion is not None
    for one, other in zip(stream.completion.choices, expected.choices, strict=True):
        same(one, other)
    assert texts == [one.text for one in expected.choices]
    assert len(replicas.routings) >= 3 * n


@STAYS
@pytest.mark.usefixtures("patience")
async def test_one_whose_replica_is_lost_waits_to_be_read_too(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    expected = await replicas.batchers[0].generate(PROMPT, **LONG)
    backpressure = watched()
    replicas.lives = [10]
    stream = batcher.stream(PROMPT, **LONG)
    await anext(stream)
    await until(lambda: backpressure.is_paused and are_idle(replicas))
    await asyncio.sleep(0.01)
    assert len(replicas.routings) == 1
    async for _ in stream:
        pass
    assert len(replicas.routings) == 2
    assert stream.completion is not None
    same(stream.completion, expected)


@STAYS
@pytest.mark.usefixtures("patience")
async def test_a_short_pause_of_a_reader_moves_nothing(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    backpressure = watched()
    stream = batcher.stream(PROMPT, **LONG)
    await anext(stream)
    await until(lambda: backpressure.is_paused)
    service: Any = batcher._running_service()
    ((output, _),) = service._outputs.values()
    assert output._stay.when() is not None
    while backpressure.is_paused:
        await anext(stream)
    assert output._stay is None or output._stay.when() is None
    async for _ in stream:
        pass
    assert len(replicas.routings) == 1
    await until(lambda: not service._outputs)
    assert output._set_paused not in backpressure._watchers, "an output that has ended watches on"


async def test_what_nobody_reads_from_the_beginning_is_not_sent(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    backpressure = watched()
    backpressure.pause("the test")
    made = asyncio.ensure_future(batcher.generate(PROMPT, **LONG))
    service: Any = batcher._running_service()
    await until(lambda: bool(service._outputs))
    await asyncio.sleep(0.01)
    assert not replicas.routings
    backpressure.resume("the test")
    assert (await made).usage.completion_tokens == 40


async def test_readers_come_and_go_while_replicas_are_full(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    backpressure = watched()
    replicas.lives = [10]
    n_refused = n_told = 0
    stream_of = replicas.stream

    def tell() -> None:
        nonlocal n_told
        for told in (backpressure.pause, backpressure.resume):
            with suppress(RuntimeError):  # or the output waits for ever
                told("the test")
                n_told += 1

    async def full_at_first(*given: Any) -> AsyncIterator[Any]:
        nonlocal n_refused
        if replicas.routings and n_refused < 2:
            n_refused += 1
            asyncio.get_running_loop().call_later(0.005, tell)
            raise QueueFullError("full", retry_after=0.05)
        async with aclosing(stream_of(*given)) as answers:
            async for messages in answers:
                yield messages

    monkeypatch.setattr(replicas, "stream", full_at_first)
    assert (await batcher.generate(PROMPT, **LONG)).usage.completion_tokens == 40
    assert (n_refused, n_told) == (2, 4)


@LEAVES_AT_ONCE
@pytest.mark.usefixtures("patience")
async def test_a_deadline_ends_what_nobody_reads(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybatcher.ray.routed_output._GRACE", 0.0)
    backpressure = watched()
    stream = batcher.stream(PROMPT, **LONG, timeout=0.5)
    await anext(stream)
    await until(lambda: backpressure.is_paused and are_idle(replicas))
    await asyncio.sleep(0.6)
    async for _ in stream:
        pass
    assert stream.completion is not None
    assert stream.completion.finish_reason == "deadline"
    assert 4 <= stream.completion.usage.completion_tokens < 40

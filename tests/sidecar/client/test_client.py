"""The client of a sidecar: the calls of a batcher, and what becomes of them over a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batcher_helpers import until
from session_helpers import ServiceOf
from small_sidecar import LONG, MESSAGES, TEMPLATE, SmallSidecar, raised_by, sidecar

from pybatcher import (
    AnyBatcher,
    Client,
    Completion,
    InvalidRequestError,
    Piece,
    QueueFullError,
    RequestEvent,
    SamplingParams,
    StepEvent,
)
from pybatcher.calls.backpressure import CURRENT_BACKPRESSURE, Backpressure
from pybatcher.calls.call import Question
from pybatcher.calls.questions import Describe, Reload
from pybatcher.calls.stream import Stream
from pybatcher.sidecar.session.session import ServerSession
from pybatcher.testing import FakeClock, FakeEngine, fake_batcher

PROMPT = "Once upon a time"
SAMPLED = {"temperature": 1.0, "seed": 7, "max_tokens": 12}


@pytest.fixture
async def served(path: Path) -> AsyncIterator[SmallSidecar]:
    batcher = fake_batcher(chat_template=TEMPLATE, n_parallel=8, max_queue_requests=64)
    async with batcher, sidecar(path, batcher) as one:
        yield one


@pytest.fixture
async def client(served: SmallSidecar) -> AsyncIterator[Client]:
    async with Client(served.path) as one:
        yield one


def without_times(completion: Completion) -> dict[str, Any]:
    """All of it that is the same in another run."""
    said = {
        field.name: getattr(completion, field.name)
        for field in fields(completion)
        if field.name not in ("timeline", "usage")
    }
    said["other_choices"] = [without_times(one) for one in completion.other_choices]
    usage = completion.usage
    return said | {"tokens": (usage.prompt_tokens, usage.completion_tokens)}


@pytest.mark.parametrize(
    "sampling",
    [
        {"max_tokens": 12},
        SAMPLED,
        SAMPLED | {"logprobs": 3},
        SAMPLED | {"n": 3, "logprobs": 0},
        {"max_tokens": 30, "stop": ["e", "\n"], "min_tokens": 2},
        {"max_tokens": 5, "logit_bias": {65: 50.0}, "stop_token_ids": [66]},
        {"params": SamplingParams(max_tokens=9, temperature=0.5, seed=1), "top_k": 5},
    ],
    ids=lambda sampling: " ".join(sampling),
)
@pytest.mark.parametrize("what", [PROMPT, [72, 105], np.array([72, 105])], ids=["text", "", "np"])
async def test_outputs_are_those_of_the_batcher(
    client: Client, served: SmallSidecar, what: Any, sampling: dict[str, Any]
) -> None:
    there = await served.batcher.generate(what, **sampling)
    here = await client.generate(what, **sampling)
    assert without_times(here) == without_times(there)
    assert len(here.timeline.token_times) == len(here.token_ids)
    assert here.timeline.ttft >= 0
    stream = client.stream(what, **sampling)
    pieces = [piece async for piece in stream]
    assert all(isinstance(piece, Piece) for piece in pieces)
    assert without_times(stream.completion) == without_times(there)
    for i, choice in enumerate(there.choices):
        own = [piece for piece in pieces if piece.index == i]
        assert "".join(map(str, own)) == choice.text
        assert sum((piece.token_ids for piece in own), ()) == choice.token_ids
        assert own[-1].finish_reason == choice.finish_reason
        if choice.logprobs is not None:
            assert sum((piece.logprobs for piece in own), ()) == choice.logprobs


async def test_chats_are_those_of_the_batcher(client: Client, served: SmallSidecar) -> None:
    there = await served.batcher.chat(MESSAGES, **SAMPLED)
    assert without_times(await client.chat(MESSAGES, **SAMPLED)) == without_times(there)
    pieces = [str(piece) async for piece in client.stream_chat(MESSAGES, **SAMPLED)]
    assert "".join(pieces) == there.text


async def test_scores_embeddings_and_tokens_are_those_of_the_batcher(
    client: Client, served: SmallSidecar
) -> None:
    batcher = served.batcher
    continuations = [" there", [72, 105]]
    assert await client.score(PROMPT, continuations) == await batcher.score(PROMPT, continuations)
    for pooling in ("last", "mean"):
        here = await client.embed(["a cat", [1, 2]], pooling=pooling)
        there = await batcher.embed(["a cat", [1, 2]], pooling=pooling)
        for mine, other in zip(here, there, strict=True):
            assert mine.vector.dtype == np.float32
            assert np.array_equal(mine.vector, other.vector)
            assert mine.prompt_tokens == other.prompt_tokens
    tokens = await client.tokenize(PROMPT)
    assert tokens == await batcher.tokenize(PROMPT)
    assert await client.tokenize(MESSAGES) == await batcher.tokenize(MESSAGES)
    assert await client.detokenize(tokens) == await batcher.detokenize(tokens)


async def test_prefixes(client: Client, served: SmallSidecar) -> None:
    info = await client.add_prefix(PROMPT * 4, name="begin", namespace="mine")
    assert (info.name, info.namespace, info.holders) == ("begin", "mine", 1)
    assert await client.prefixes() == served.batcher.prefixes() == (info,)
    completion = await client.generate(PROMPT * 4 + "!", namespace="mine", max_tokens=1)
    assert completion.usage.cached_tokens >= info.n_tokens - 1
    await client.remove_prefix("begin", "mine")
    assert await client.prefixes() == ()


async def test_questions(client: Client, served: SmallSidecar) -> None:
    await client.generate(PROMPT, max_tokens=3)
    own = asdict(served.batcher.statistics())
    assert own.items() <= asdict(await client.statistics()).items()
    assert (await client.health()).ok
    assert client.model_name == served.batcher.model_name == "fake"
    assert client.limits["max_queue_requests"] == 64
    assert client.limits["max_frame"] == 16 * 2**20
    with pytest.raises(InvalidRequestError, match="reload"):
        await client.reload(n_batch=64)


async def test_a_reload_is_known_at_once(path: Path, served: SmallSidecar) -> None:
    class Reloading(ServiceOf):
        model = "fake"

        async def ask(self, question: Question[Any]) -> Any:
            if isinstance(question, Describe):
                return {**await super().ask(question), "model": self.model}
            if isinstance(question, Reload):
                self.model = question.changes["model"]
                return {"model": self.model}
            return await super().ask(question)

    backing, loop = Reloading(served.batcher), asyncio.get_running_loop()
    other = path.with_name("other.sock")
    server = await loop.create_unix_server(
        lambda: ServerSession(backing, on_end=lambda _: None), other
    )
    async with Client(other) as client:
        assert client.model_name == "fake"
        assert await client.reload(model="better") == {"model": "better"}
        assert client.model_name == "better"
        assert client.limits["max_frame"] == 16 * 2**20
    server.close()


WRONG: dict[str, Callable[[AnyBatcher], Any]] = {
    "prompt": lambda b: b.generate(""),
    "prompt of no type": lambda b: b.generate(3.5),
    "token id": lambda b: b.generate([1, 2, 10**9]),
    "token ids": lambda b: b.generate([1, "x"]),
    "too long": lambda b: b.generate([1] * 9000),
    "messages": lambda b: b.chat([]),
    "messages of no type": lambda b: b.chat("hello"),
    "max_tokens": lambda b: b.generate(PROMPT, max_tokens=0),
    "temperature": lambda b: b.generate(PROMPT, temperature=float("nan")),
    "stop": lambda b: b.generate(PROMPT, stop=[""]),
    "bias of no token": lambda b: b.generate(PROMPT, logit_bias={10**6: 1.0}),
    "unknown": lambda b: b.generate(PROMPT, max_token=1),
    "params": lambda b: b.generate(PROMPT, {"max_tokens": 1}),
    "priority": lambda b: b.generate(PROMPT, priority=2000),
    "timeout": lambda b: b.generate(PROMPT, timeout=0),
    "timeout of no type": lambda b: b.generate(PROMPT, timeout="1"),
    "namespace": lambda b: b.generate(PROMPT, namespace=1),
    "stream": lambda b: anext(b.stream(PROMPT, top_p=2.0)),
    "continuations": lambda b: b.score(PROMPT, []),
    "likelier tokens": lambda b: b.score(PROMPT, ["x"], top_logprobs=99),
    "likelier tokens of a prompt": lambda b: b.generate(PROMPT, prompt_logprobs=99),
    "continuation": lambda b: b.score(PROMPT, ["x", ""]),
    "texts": lambda b: b.embed(5),
    "pooling": lambda b: b.embed(["x"], pooling="max"),
    "too long to embed": lambda b: b.embed([[1] * 9000], pooling="mean"),
    "prefix": lambda b: b.add_prefix(""),
    "prefix name": lambda b: b.add_prefix("x", name=""),
    "no such prefix": lambda b: b.remove_prefix("nobody"),
    "token ids of a text": lambda b: b.detokenize([-1]),
    "nothing to tokenize": lambda b: b.tokenize(""),
    "lone surrogate": lambda b: b.generate("\ud800"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_wrong_input_is_the_same_error_as_in_process(
    client: Client, served: SmallSidecar, what: str
) -> None:
    here = await raised_by(lambda: WRONG[what](client))
    if what == "lone surrogate":  # a batcher leaves it to its tokenizer; no socket can have it
        assert isinstance(here, InvalidRequestError)
    else:
        assert type(here) is type(await raised_by(lambda: WRONG[what](served.batcher)))
    assert str(here)
    assert (await client.generate(PROMPT, max_tokens=1)).token_ids  # nobody else is harmed
    assert served.n_connections == 1


async def test_a_full_queue_says_when_to_come_back(path: Path) -> None:
    batcher = fake_batcher(FakeEngine(step_delay=0.001, n_parallel=1), max_queue_requests=1)
    async with batcher, sidecar(path, batcher), Client(path) as client:
        calls = [asyncio.create_task(client.generate(PROMPT, **LONG))]
        await until(lambda: batcher.statistics().running == 1)
        calls.append(asyncio.create_task(client.generate(PROMPT, **LONG)))
        await until(lambda: batcher.statistics().queued == 1)
        with pytest.raises(QueueFullError) as caught:
            await client.generate(PROMPT)
        assert caught.value.retry_after > 0
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_a_deadline_is_kept_at_the_other_end(path: Path) -> None:
    clock = FakeClock()
    engine = FakeEngine(before_step=lambda _: clock.advance(0.01))
    batcher = fake_batcher(engine, clock=clock, batch_size=1)
    async with batcher, sidecar(path, batcher), Client(path) as client:
        completion = await client.generate(PROMPT, timeout=0.1, **LONG)
        assert completion.finish_reason == "deadline"
        assert batcher.statistics().expired == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.generate(PROMPT, **LONG),
        lambda client: client.generate(PROMPT, n=3, **LONG),
        lambda client: client.score([1] * 5000, [[1] * 9] * 20),
        lambda client: client.embed([[1] * 5000] * 20),
    ],
    ids=["generate", "samples", "score", "embed"],
)
async def test_cancelling_the_task_cancels_at_the_other_end(
    path: Path, call: Callable[[Client], Any]
) -> None:
    batcher = fake_batcher(FakeEngine(step_delay=0.005, n_ctx=2**16))
    async with batcher, sidecar(path, batcher), Client(path) as client:
        task = asyncio.create_task(call(client))
        await until(lambda: batcher.statistics().running > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: batcher.statistics().running + batcher.statistics().queued == 0)
        assert batcher.statistics().cancelled > 0


@pytest.mark.parametrize("how", ["aclose", "with", "break"])
async def test_a_stream_that_is_left_is_cancelled_at_the_other_end(path: Path, how: str) -> None:
    batcher = fake_batcher(FakeEngine(step_delay=0.001))
    async with batcher, sidecar(path, batcher), Client(path) as client:
        stream = client.stream(PROMPT, **LONG)
        async for piece in stream:
            assert piece.token_ids
            break
        if how == "aclose":
            await stream.aclose()
        elif how == "with":
            async with stream:
                await anext(stream)
        del stream
        await until(lambda: batcher.statistics().cancelled == 1)
        assert len((await client.generate(PROMPT, max_tokens=3, ignore_eos=True)).token_ids) == 3


async def test_clients_share_forward_passes(path: Path) -> None:
    engine = FakeEngine(n_parallel=16)
    batcher = fake_batcher(engine, batch_size=16, batch_timeout=30.0)
    async with (
        batcher,
        sidecar(path, batcher) as served,
        Client(path) as one,
        Client(path) as other,
    ):
        calls = [(one, other)[i % 2].generate(f"prompt {i:02}", max_tokens=1) for i in range(16)]
        completions = await asyncio.gather(*calls)
        assert served.n_connections == 2
        alone = [await batcher.tokenize(f"prompt {i:02}") for i in range(16)]
        assert len(set(alone)) == 16
    assert len({completion.token_ids for completion in completions}) > 1
    assert [len(plan.entries) for plan in engine.plans] == [16]


async def test_events_come_as_long_as_somebody_is_attached(served: SmallSidecar) -> None:
    seen: list[Any] = []
    client = Client(served.path)
    detach = client.attach(seen.append)  # before the start

    def broken(event: object) -> None:
        raise KeyError(event)

    async with client:
        client.attach(broken)
        await until(lambda: served.batcher._telemetry.has_handlers)
        await served.batcher.generate(PROMPT, max_tokens=3, ignore_eos=True)
        await until(lambda: any(isinstance(event, RequestEvent) for event in seen))
        told = next(event for event in seen if isinstance(event, RequestEvent))
        assert (told.finish_reason, told.generated_tokens) == ("length", 3)
        assert sum(event.decode_rows for event in seen if isinstance(event, StepEvent)) == 2
        await asyncio.to_thread(detach)  # from any thread
        await until(lambda: not served.batcher._telemetry.has_handlers)
        n_seen = len(seen)
        await client.generate(PROMPT, max_tokens=3)
        assert len(seen) == n_seen
        client.attach(broken)
        await until(lambda: served.batcher._telemetry.has_handlers)
        await client.generate(PROMPT, max_tokens=3)
        await until(lambda: not served.batcher._telemetry.has_handlers)
        again = client.attach(seen.append)
        await until(lambda: served.batcher._telemetry.has_handlers)
        again()


@pytest.mark.slow
async def test_what_a_front_does_not_read_has_no_rows_at_the_sidecar_while_others_run(
    path: Path,
) -> None:
    engine = FakeEngine(n_parallel=4, step_delay=0.001)
    async with fake_batcher(engine) as batcher, sidecar(path, batcher) as served:
        async with Client(served.path) as client, Client(served.path) as another:
            expected = await client.generate(PROMPT, max_tokens=500, ignore_eos=True)

            async def begun_by_a_front() -> Stream:
                CURRENT_BACKPRESSURE.set(Backpressure())
                return client.stream(PROMPT, max_tokens=500, ignore_eos=True)

            stalled = await asyncio.create_task(begun_by_a_front())
            found = list((await anext(stalled)).token_ids)
            first = len(engine.plans)
            await another.generate("another", max_tokens=400, ignore_eos=True)
            beside = sum(len(plan.entries) == 2 for plan in engine.plans[first:])
            assert beside < 250  # 128 pieces, and those that were on their way
            async for piece in stalled:
                found += piece.token_ids
            assert found == list(expected.token_ids)
        batcher.check_idle()

"""`output` of `generate` and `stream`: from every token on, what an undisturbed run would give."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from pybatcher import (
    Batcher,
    BlockingBatcher,
    DeadlineExceededError,
    InvalidRequestError,
    Piece,
    QueueFullError,
    RequestTooLongError,
)
from pybatcher.calls.call import Call
from pybatcher.calls.chat_settings import ChatSettings
from pybatcher.calls.reply import Reply
from pybatcher.calls.telemetry import RequestEvent
from pybatcher.testing import FakeClock, FakeEngine, byte_tokenizer, fake_batcher
from pybatcher.testing.byte_tokenizer import EOS_TOKEN_ID

PROMPT = "Once upon a time"
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"max_tokens": 30, "ignore_eos": True},
    "sampled": {"max_tokens": 30, "temperature": 1.0, "seed": 3, "logprobs": 2},
    "at least": {"max_tokens": 30, "min_tokens": 20, "stop_token_ids": tuple(range(0, 250, 5))},
    "an end token": {"max_tokens": 300, "stop_token_ids": tuple(range(0, 250, 9)), "seed": 1},
}


async def pieces_of(batcher: Batcher, prompt: Any = PROMPT, **arguments: Any) -> list[Piece]:
    stream = batcher.stream(prompt, **arguments)
    pieces = [piece async for piece in stream]
    completion = stream.completion
    assert completion is not None
    assert completion.text == "".join(piece.text for piece in pieces)
    assert completion.token_ids == tuple(t for piece in pieces for t in piece.token_ids)
    assert completion.finish_reason == pieces[-1].finish_reason
    assert completion.usage.completion_tokens == len(completion.token_ids)
    return pieces


def tokens_of(pieces: list[Piece]) -> tuple[int, ...]:
    return tuple(token for piece in pieces for token in piece.token_ids)


@pytest.mark.parametrize("max_draft_tokens", [0, 8])
@pytest.mark.parametrize("way", WAYS)
async def test_from_every_token_on(way: str, max_draft_tokens: int) -> None:
    """With stop texts of several tokens too, each of which ends somewhere else."""
    async with fake_batcher(max_draft_tokens=max_draft_tokens) as batcher:
        whole = await pieces_of(batcher, **WAYS[way])
        text = "".join(piece.text for piece in whole)
        for stop in [(), *((text[i : i + 3],) for i in range(0, len(text) - 3, 4))]:
            undisturbed = await pieces_of(batcher, **WAYS[way], stop=stop)
            tokens = tokens_of(undisturbed)
            calls = (
                pieces_of(batcher, **WAYS[way], stop=stop, output=tokens[:k])
                for k in range(len(tokens) + 1)
            )
            going_on = await asyncio.gather(*calls)
            for k in range(len(tokens)):
                assert going_on[k] == undisturbed[k:]
            nothing_new = () if "logprobs" in WAYS[way] else None
            reason = undisturbed[-1].finish_reason
            assert going_on[-1] == [Piece("", (), nothing_new, reason)]


@pytest.mark.parametrize("max_draft_tokens", [0, 4])
async def test_in_a_crowd_that_is_preempted(max_draft_tokens: int) -> None:
    async with fake_batcher() as batcher:
        prompts = [f"{PROMPT} {i % 3}" for i in range(24)]
        alone = [
            await pieces_of(batcher, p, seed=i, max_tokens=24, temperature=1.0, logprobs=1)
            for i, p in enumerate(prompts)
        ]
    engine = FakeEngine(n_ctx=160, block_size=8, n_parallel=6)
    options = {"output_reserve": 0, "watermark": 0.0, "n_batch": 24}
    async with fake_batcher(engine, max_draft_tokens=max_draft_tokens, **options) as batcher:
        calls = (
            pieces_of(
                batcher,
                p,
                seed=i,
                max_tokens=24,
                temperature=1.0,
                logprobs=1,
                output=tokens_of(alone[i])[:i],
            )
            for i, p in enumerate(prompts)
        )
        going_on = await asyncio.gather(*calls)
        assert batcher.statistics().preemptions > 0
        assert batcher.statistics().replayed_tokens > 0
    for i in range(24):
        assert going_on[i] == alone[i][i:] or len(alone[i]) <= i


async def test_a_completion_counts_what_is_new() -> None:
    clock = FakeClock(100.0)
    engine = FakeEngine(before_step=lambda plan: clock.advance(0.5))
    async with fake_batcher(engine, clock=clock, batch_size=1) as batcher:
        whole = await batcher.generate(PROMPT, max_tokens=10, ignore_eos=True)
        rest = await batcher.generate(
            PROMPT, max_tokens=10, ignore_eos=True, output=whole.token_ids[:7]
        )
    assert rest.token_ids == whole.token_ids[7:]
    assert rest.usage.prompt_tokens == whole.usage.prompt_tokens
    assert rest.usage.completion_tokens == 3
    assert rest.usage.cached_tokens <= rest.usage.prompt_tokens
    assert rest.timeline.token_times == (105.5, 106.0, 106.5)


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        ("length", {"max_tokens": 5, "output": (1, 2, 3, 4, 5)}),
        ("length", {"max_tokens": 3, "output": (1, 2, 3, 4, 5)}),
        ("length", {"output": (1,) * 15}),
        ("stop", {"output": (1, 2, EOS_TOKEN_ID)}),
        ("stop", {"output": (1, 2, 3), "stop_token_ids": (2,)}),
        (
            "stop",
            {
                "output": byte_tokenizer().encode("x END", add_special_tokens=False)[1:],
                "stop": "END",
            },
        ),
    ],
)
async def test_an_output_that_has_ended_reaches_no_engine(
    reason: str, arguments: dict[str, Any]
) -> None:
    clock, events = FakeClock(7.0), []
    engine = FakeEngine(max_positions=32)
    async with fake_batcher(engine, clock=clock) as batcher:
        batcher.attach(events.append)
        completion = await batcher.generate(PROMPT, logprobs=1, **arguments)
        assert await pieces_of(batcher, logprobs=1, **arguments) == [Piece("", (), (), reason)]
        assert engine.plans == []
        assert batcher.statistics().submitted == 0
    assert (completion.text, completion.token_ids, completion.logprobs) == ("", (), ())
    assert completion.finish_reason == reason
    assert completion.usage.prompt_tokens == 17
    assert completion.usage.completion_tokens == 0
    timeline = completion.timeline
    assert (timeline.first_token, timeline.finished, timeline.token_times) == (7.0, 7.0, ())
    assert (timeline.ttft, timeline.tpot, timeline.itl, timeline.queued) == (0.0, 0.0, (), 0.0)
    assert [type(event) for event in events] == [RequestEvent] * 2
    assert [(e.finish_reason, e.generated_tokens, e.ttft) for e in events] == [
        (reason, 0, None)
    ] * 2


async def test_a_deadline_leaves_what_was_held_back() -> None:
    """Even where nothing is new: what was drawn before is not nothing."""
    clock = FakeClock()
    engine = FakeEngine(before_step=lambda plan: clock.advance(10.0))
    output = byte_tokenizer().encode("an EN", add_special_tokens=False)
    async with fake_batcher(engine, clock=clock, batch_size=1, n_batch=8) as batcher:
        arguments = {"timeout": 5.0, "stop": "END"}
        with pytest.raises(DeadlineExceededError):
            await batcher.generate(PROMPT, **arguments)
        completion = await batcher.generate(PROMPT, output=output, **arguments)
        assert (completion.text, completion.token_ids) == ("EN", ())
        assert completion.finish_reason == "deadline"
        assert completion.timeline.first_token == completion.timeline.finished
        pieces = await pieces_of(batcher, output=output, **arguments)
        assert pieces == [Piece("EN", (), None, "deadline")]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("text", "output is 'text', of type str; it must be a sequence of token ids"),
        ("", "output is '', of type str"),
        (None, "output is None, of type NoneType"),
        (b"ab", "output is b'ab'"),
        ([1, 2.5], r"output\[1\] is 2.5, of type float; a token id is a whole number"),
        ([1, True], r"output\[1\] is True"),
        ([-1], r"output\[0\] is -1; token ids of this model are from 0 to 257"),
        ([258], r"output\[0\] is 258"),
    ],
)
async def test_what_is_no_output(output: Any, message: str) -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match=message):
            await batcher.generate(PROMPT, output=output)
        with pytest.raises(InvalidRequestError, match=message):
            await anext(batcher.stream(PROMPT, output=output))


async def test_what_cannot_go_on() -> None:
    messages = [{"role": "user", "content": "Hello"}]
    async with fake_batcher(FakeEngine(max_positions=32), max_queue_tokens=25) as batcher:
        with pytest.raises(InvalidRequestError, match=r"n is 2; with output, .* it must be 1"):
            await batcher.generate(PROMPT, output=(1,), n=2)
        with pytest.raises(RequestTooLongError, match=r"\(17 tokens\) and output \(16\) have 33"):
            await batcher.generate(PROMPT, output=(1,) * 16)
        with pytest.raises(RequestTooLongError, match=r"\(33 tokens\) and output \(1\) have 34"):
            await batcher.generate((5,) * 33, output=(1,))
        with pytest.raises(InvalidRequestError, match="unknown option 'output'"):
            await batcher.chat(messages, output=(1,))
        calls = (batcher.generate(PROMPT, output=(1,) * 5) for _ in range(2))
        first, second = await asyncio.gather(*calls, return_exceptions=True)
        assert not isinstance(first, BaseException)
        assert isinstance(second, QueueFullError)


async def test_arrays_are_token_ids_too() -> None:
    async with fake_batcher() as batcher:
        whole = await batcher.generate(PROMPT, max_tokens=8, ignore_eos=True, output=np.array([]))
        for dtype in (np.int32, np.int64):
            output = np.array(whole.token_ids[:5], dtype)
            rest = await batcher.generate(PROMPT, max_tokens=8, ignore_eos=True, output=output)
            assert rest.token_ids == whole.token_ids[5:]


async def test_a_chat_goes_on_from_its_tokens() -> None:
    """As a prompt; and, for who has the call itself, as a chat."""
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "Hello"}]
    async with fake_batcher(chat_template=template, system_prompt="Be kind.") as batcher:
        whole = await batcher.chat(messages, max_tokens=12, ignore_eos=True)
        prompt = await batcher.tokenize(messages)
        rest = await batcher.generate(
            prompt, max_tokens=12, ignore_eos=True, output=whole.token_ids[:4]
        )
        assert rest.token_ids == whole.token_ids[4:]
        reply = Reply(streams=False)
        call = Call(
            content=messages,
            chat=ChatSettings(),
            params=None,
            sampling={"max_tokens": 12, "ignore_eos": True},
            output=whole.token_ids[:4],
            priority=0,
            timeout=None,
            namespace=None,
        )
        await batcher._running_service().submit(call, reply)
        while not reply.ended:
            await reply.wait()
        assert reply.result().token_ids == whole.token_ids[4:]


async def test_from_other_threads_and_without_asyncio() -> None:
    async with fake_batcher() as batcher:
        whole = await batcher.generate(PROMPT, max_tokens=8, ignore_eos=True)
        arguments = {"max_tokens": 8, "ignore_eos": True, "output": whole.token_ids[:3]}
        future = batcher.threadsafe.generate(PROMPT, **arguments)
        assert (await asyncio.wrap_future(future)).token_ids == whole.token_ids[3:]


def test_without_asyncio() -> None:
    with BlockingBatcher() as batcher:
        whole = batcher.generate(PROMPT, max_tokens=8)
        rest = batcher.generate(PROMPT, max_tokens=8, output=whole.token_ids[:3])
        assert rest.token_ids == whole.token_ids[3:]
        stream = batcher.stream(PROMPT, max_tokens=8, output=whole.token_ids[:3])
        assert "".join(map(str, stream)) == rest.text


async def test_who_gives_up_before_it_is_sent_leaves_nothing() -> None:
    async with fake_batcher(FakeEngine(n_ctx=16_384)) as batcher:
        task = asyncio.create_task(
            batcher.generate(PROMPT, output=(5,) * 4000, max_tokens=10_000, ignore_eos=True)
        )
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert batcher.statistics().submitted == 0

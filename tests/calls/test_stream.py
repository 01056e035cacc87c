"""Streams: what comes out of them, and that none leaves anything behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import aclosing

import pytest
from batcher_helpers import until, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st

from pybatcher import BatcherClosedError, EngineFailedError, InvalidRequestError, Piece
from pybatcher.calls.backpressure import CURRENT_BACKPRESSURE, Backpressure
from pybatcher.calls.stream import Stream
from pybatcher.scheduling import StepPlan
from pybatcher.testing import FakeClock, FakeEngine, byte_tokenizer, fake_batcher

PROMPT = "Once upon a time"
LONG = {"max_tokens": 8000, "ignore_eos": True}


async def test_pieces_are_together_the_completion() -> None:
    async with fake_batcher() as batcher:
        expected = await batcher.generate(PROMPT, max_tokens=300, stop="nowhere in it")
        stream = batcher.stream(PROMPT, max_tokens=300, stop="nowhere in it")
        assert stream.completion is None
        pieces = [piece async for piece in stream]
    assert "".join(map(str, pieces)) == expected.text
    assert sum((piece.token_ids for piece in pieces), ()) == expected.token_ids
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == expected.finish_reason
    assert stream.completion is not None
    assert stream.completion.text == expected.text
    assert stream.completion.token_ids == expected.token_ids


async def test_each_piece_comes_with_its_token_as_soon_as_that_is_drawn() -> None:
    steps = threading.Semaphore(0)

    def pause(plan: StepPlan) -> None:
        assert steps.acquire(timeout=20)

    engine = FakeEngine(before_step=pause)
    async with fake_batcher(engine, batch_size=1) as batcher:
        stream = batcher.stream(PROMPT, max_tokens=5, ignore_eos=True)
        for n_begun in range(1, 6):
            next_piece = asyncio.create_task(anext(stream))
            await until(lambda n=n_begun: len(engine.plans) == n)
            assert not next_piece.done(), "all that the steps before gave has been taken"
            steps.release()
            assert len((await next_piece).token_ids) == 1


async def test_a_stream_that_is_closed_while_it_is_submitted_is_cancelled() -> None:
    may_go, cancelled = asyncio.Event(), list[range]()

    async def submit(reply: object) -> range:
        await may_go.wait()
        return range(7, 8)

    stream = Stream(submit, cancelled.append)
    reading = asyncio.create_task(anext(stream, None))
    await asyncio.sleep(0)
    stream.close()
    assert cancelled == []  # it has no id yet
    may_go.set()
    assert await reading is None
    assert cancelled == [range(7, 8)]


async def test_text_is_whole_characters_only() -> None:
    async with fake_batcher() as batcher:
        stream = batcher.stream(PROMPT, max_tokens=500, ignore_eos=True)
        pieces = [piece async for piece in stream]
    assert stream.completion is not None
    assert stream.completion.text == byte_tokenizer().decode(stream.completion.token_ids)
    assert any(not piece.text for piece in pieces), "no character was ever cut"
    so_far = ""
    for piece in pieces:
        so_far += piece.text
        assert stream.completion.text.startswith(so_far)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(start=st.integers(0, 180), length=st.integers(1, 8), streams=st.booleans())
def test_stop_texts_are_held_back_and_never_shown(start: int, length: int, streams: bool) -> None:
    async def check() -> None:
        async with fake_batcher() as batcher:
            full = await batcher.generate(PROMPT, max_tokens=250, ignore_eos=True)
            stop = full.text[start : start + length]
            stream = batcher.stream(PROMPT, max_tokens=250, ignore_eos=True, stop=[stop, "\0" * 9])
            text = ""
            async for piece in stream:
                text += piece.text
                assert full.text.startswith(text)
                assert stop not in text
            assert text == full.text[: full.text.index(stop)]
            assert piece.finish_reason == "stop"

    asyncio.run(check())


async def test_submitted_only_when_the_first_piece_is_asked_for() -> None:
    async with fake_batcher() as batcher:
        streams = [batcher.stream(PROMPT) for _ in range(5)]
        await batcher.generate(PROMPT, max_tokens=1)
        assert batcher.statistics().submitted == 1, "what came before it would count"
        await streams[0].aclose()
        assert [piece async for piece in streams[0]] == []
        del streams
        await batcher.generate(PROMPT, max_tokens=1)
        assert batcher.statistics().submitted == 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["aclose", "aclosing", "async with", "break", "drop", "cycle"])
async def test_a_stream_that_is_left_is_cancelled(how: str) -> None:
    engine = FakeEngine(step_delay=0.001)
    async with fake_batcher(engine) as batcher:
        await _leave(batcher.stream(PROMPT, **LONG), how)
        gc.collect()
        await until(lambda: batcher.statistics().cancelled == 1)
        await until(lambda: engine.used_sequences == 0)
        assert batcher.statistics().generated_tokens < 1000


async def _leave(stream: object, how: str) -> None:
    if how == "aclose":
        assert isinstance(await anext(stream), Piece)
        await stream.aclose()
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    elif how == "aclosing":
        async with aclosing(stream) as closing:
            await anext(closing)
    elif how == "async with":
        async with stream as entered:
            await anext(entered)
    elif how == "break":
        async for _ in stream:
            break
    elif how == "drop":
        await anext(stream)
    else:
        await anext(stream)
        cycle = [stream]
        cycle.append(cycle)


async def test_a_reader_whose_task_is_cancelled_cancels_the_request() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def block(plan: StepPlan) -> None:
        inside.set()
        wait_for(go_on)

    async with fake_batcher(FakeEngine(before_step=block)) as batcher:
        stream = batcher.stream(PROMPT, **LONG)
        task = asyncio.create_task(anext(stream))
        await until(inside.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await until(lambda: batcher.statistics().cancelled == 1)
        assert [piece async for piece in stream] == []


async def test_closing_wakes_the_reader() -> None:
    go_on = threading.Event()
    async with fake_batcher(FakeEngine(before_step=lambda plan: wait_for(go_on))) as batcher:
        stream = batcher.stream(PROMPT, **LONG)
        reader = asyncio.create_task(_collect(stream))
        await until(lambda: batcher.statistics().submitted == 1)
        stream.close()
        assert await reader == []
        go_on.set()


async def test_one_reader_at_a_time() -> None:
    go_on = threading.Event()
    async with fake_batcher(FakeEngine(before_step=lambda plan: wait_for(go_on))) as batcher:
        stream = batcher.stream(PROMPT, max_tokens=3, ignore_eos=True)
        reader = asyncio.create_task(_collect(stream))
        await until(lambda: batcher.statistics().submitted == 1)
        with pytest.raises(RuntimeError, match="another task waits"):
            await anext(stream)
        go_on.set()
        assert len(await reader) == 3


async def test_caller_futures_held_replied_one_by_one() -> None:
    engine = FakeEngine()
    async with fake_batcher(engine) as batcher:
        stalled = batcher.stream(PROMPT, max_tokens=200, ignore_eos=True)
        await anext(stalled)
        other = await batcher.generate("another", max_tokens=300, ignore_eos=True)
        assert len(other.token_ids) == 300
        assert batcher.statistics().completed == 2
        assert len(await _collect(stalled)) == 199


@pytest.mark.slow
async def test_what_a_front_does_not_read_for_its_client_has_no_rows_while_others_run() -> None:
    engine = FakeEngine(step_delay=0.001)
    async with fake_batcher(engine) as batcher:
        expected = await batcher.generate(PROMPT, max_tokens=400, ignore_eos=True)

        async def begun_by_a_front() -> Stream:
            CURRENT_BACKPRESSURE.set(Backpressure())
            return batcher.stream(PROMPT, max_tokens=400, ignore_eos=True)

        stalled = await asyncio.create_task(begun_by_a_front())
        pieces = [await anext(stalled)]
        first = len(engine.plans)
        others = [batcher.generate("another", max_tokens=n, ignore_eos=True) for n in (300, 250)]
        await asyncio.gather(*others)
        beside = [len(plan.entries) for plan in engine.plans[first:]]
        assert beside.count(3) < 140  # of 250 that it had had
        pieces += await _collect(stalled)
        assert [token for piece in pieces for token in piece.token_ids] == list(expected.token_ids)


async def test_streams_that_a_program_reads_one_after_the_other_are_made_together() -> None:
    engine = FakeEngine(step_delay=0.001)
    async with fake_batcher(engine) as batcher:
        begun = [batcher.stream(PROMPT, max_tokens=400, ignore_eos=True) for _ in range(3)]
        for one in begun:
            await anext(one)
        for one in begun:
            assert len(await _collect(one)) == 399
        assert sum(len(plan.entries) == 3 for plan in engine.plans) > 380


async def test_one_that_is_left_holds_back_no_other_of_its_response() -> None:
    async with fake_batcher(FakeEngine()) as batcher:
        backpressure = Backpressure()
        CURRENT_BACKPRESSURE.set(backpressure)
        left = batcher.stream(PROMPT, max_tokens=400, ignore_eos=True)
        await anext(left)
        await until(lambda: backpressure.is_paused)
        left.close()
        assert not backpressure.is_paused


async def test_errors_come_out_of_the_stream() -> None:
    engine = FakeEngine()

    def break_later(plan: StepPlan) -> None:
        if len(engine.plans) == 4:
            raise ValueError("broken")

    engine.before_step = break_later
    async with fake_batcher(engine, max_restarts=0) as batcher:
        with pytest.raises(InvalidRequestError, match="max_tokens"):
            await anext(batcher.stream(PROMPT, max_tokens=0))
        stream = batcher.stream(PROMPT, **LONG)
        assert [(await anext(stream)).finish_reason for _ in range(3)] == [None] * 3
        with pytest.raises(EngineFailedError, match="broken"):
            await anext(stream)
        assert [piece async for piece in stream] == []
        assert stream.completion is None


async def test_the_deadline_is_told_by_the_last_piece() -> None:
    clock = FakeClock()
    engine = FakeEngine(before_step=lambda plan: clock.advance(1.0))
    async with fake_batcher(engine, clock=clock, batch_size=1) as batcher:
        stream = batcher.stream(PROMPT, timeout=4.5, ignore_eos=True, logprobs=0)
        pieces = [piece async for piece in stream]
    assert [piece.finish_reason for piece in pieces] == [None] * 5 + ["deadline"]
    assert pieces[-1].token_ids == ()
    assert stream.completion is not None
    assert "".join(map(str, pieces)) == stream.completion.text


async def test_a_stream_that_outlives_its_batcher() -> None:
    engine = FakeEngine(step_delay=0.001)
    async with fake_batcher(engine) as batcher:
        stream = batcher.stream(PROMPT, **LONG)
        await anext(stream)
        await batcher.close(drain=False)
    with pytest.raises(BatcherClosedError):
        await _collect(stream)


async def _collect(stream: object) -> list[Piece]:
    return [piece async for piece in stream]


async def test_a_stream_that_another_loop_reads_on_is_an_error() -> None:
    """Its pieces would never arrive there; where it was begun, it goes on."""
    async with fake_batcher() as batcher:
        stream = batcher.stream("abc", max_tokens=4)
        first = await anext(stream)

        def read_on() -> None:
            asyncio.run(asyncio.wait_for(anext(stream), 30.0))  # type: ignore[arg-type]

        with pytest.raises(InvalidRequestError, match="begun in another event loop"):
            await asyncio.to_thread(read_on)
        rest = [piece async for piece in stream]
        assert len([first, *rest]) == 4


async def test_awaiting_a_stream_reads_what_is_left() -> None:
    async with fake_batcher() as batcher:
        whole = await batcher.generate(PROMPT, max_tokens=9)
        stream = batcher.stream(PROMPT, max_tokens=9)
        assert (await stream).token_ids == whole.token_ids
        assert await stream is await stream, "the end is the end, however often it is awaited"
        begun = batcher.stream(PROMPT, max_tokens=9)
        first = await anext(begun)
        assert (await begun).text == whole.text
        assert first.token_ids == whole.token_ids[:1]
        gathered = await asyncio.gather(*(batcher.stream(PROMPT, max_tokens=9) for _ in range(3)))
        assert {one.token_ids for one in gathered} == {whole.token_ids}


async def test_awaiting_a_stream_raises_its_error() -> None:
    async with fake_batcher(FakeEngine(step_delay=0.001)) as batcher:
        refused = batcher.stream(PROMPT, max_tokens=0)
        with pytest.raises(InvalidRequestError, match="max_tokens"):
            await refused
        closed = batcher.stream(PROMPT, **LONG)
        await anext(closed)
        closed.close()
        for stream in (refused, closed):
            with pytest.raises(InvalidRequestError, match="begin another"):
                await stream


async def test_who_awaits_a_stream_and_is_cancelled_cancels_the_request() -> None:
    async with fake_batcher(FakeEngine(step_delay=0.001)) as batcher:

        async def ask() -> None:
            await batcher.stream(PROMPT, **LONG)

        asking = asyncio.create_task(ask())
        await until(lambda: batcher.statistics().running == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: batcher.statistics().cancelled == 1)

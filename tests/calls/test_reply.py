"""`Reply`: where results are left, how it ends, and who is woken up."""

from __future__ import annotations

import asyncio

import pytest
from batcher_helpers import until

from pybatcher import Completion, EngineError, Piece
from pybatcher.calls.backpressure import Backpressure
from pybatcher.calls.completion import Timeline, Usage
from pybatcher.calls.reply import Reply
from pybatcher.calls.scores import Answer

TIMELINE = Timeline(submitted=0.0, admitted=1.0, first_token=2.0, finished=3.0, token_times=(2.0,))


def completion(n_tokens: int, text: str = "") -> Completion:
    return Completion(
        text=text,
        token_ids=tuple(range(n_tokens)),
        finish_reason="stop",
        usage=Usage(prompt_tokens=7, cached_tokens=4, completion_tokens=n_tokens),
        timeline=TIMELINE,
    )


def answer(cached_tokens: int) -> Answer:
    return Answer(logprobs=(-1.0,), vector=None, cached_tokens=cached_tokens)


def test_one_result_is_the_reply() -> None:
    reply, one = Reply(), completion(3)
    assert (reply.ended, reply.completion) == (False, None)
    reply.finish(one)
    assert (reply.ended, reply.failed, reply.completion) == (True, False, one)
    assert reply.result() is one


def test_it_ends_with_the_last_of_n_results_in_the_order_of_their_indices() -> None:
    reply, samples = Reply(), [completion(1, "a"), completion(2, "b"), completion(3, "c")]
    reply.expect(3)
    for i in (2, 0):
        reply.finish(samples[i], i)
        assert (reply.ended, reply.completion) == (False, None)
    reply.finish(samples[1], 1)
    whole = reply.result()
    assert isinstance(whole, Completion)
    assert [choice.text for choice in whole.choices] == ["a", "b", "c"]
    assert whole.usage == Usage(prompt_tokens=7, cached_tokens=4, completion_tokens=6)
    assert [choice.usage.completion_tokens for choice in whole.other_choices] == [2, 3]


def test_a_second_result_of_a_sample_changes_nothing() -> None:
    reply, first = Reply(n=2), completion(1)
    reply.finish(first, 0)
    reply.finish(completion(2), 0)
    assert not reply.ended
    reply.finish(completion(3), 1)
    whole = reply.completion
    assert whole is not None
    assert whole.token_ids == first.token_ids


def test_the_first_error_wins() -> None:
    reply, first = Reply(n=2), EngineError("the first")
    reply.finish(completion(1), 0)
    reply.fail(first)
    reply.fail(EngineError("the second"))
    reply.finish(completion(1), 1)
    assert (reply.ended, reply.failed, reply.completion) == (True, True, None)
    with pytest.raises(EngineError) as raised:
        reply.result()
    assert raised.value is first


def test_an_error_after_the_end_is_none() -> None:
    reply, one = Reply(), completion(1)
    reply.finish(one)
    reply.fail(EngineError("too late"))
    assert not reply.failed
    assert reply.result() is one


def test_there_is_no_result_before_the_end() -> None:
    reply = Reply(n=2)
    reply.finish(completion(1), 0)
    with pytest.raises(RuntimeError, match="before the end"):
        reply.result()


async def test_answers_are_taken_once_and_as_they_come() -> None:
    reply = Reply(n=4)
    assert reply.take_answers() == []
    reply.finish(answer(2), 2)
    reply.finish(answer(0), 0)
    await asyncio.wait_for(reply.wait_for_result(), 20)
    assert reply.take_answers() == [(2, answer(2)), (0, answer(0))]
    waiting = asyncio.create_task(reply.wait_for_result())
    await until(lambda: reply._reader is not None)
    assert not waiting.done()
    reply.finish(answer(3), 3)
    await asyncio.wait_for(waiting, 20)
    assert reply.take_answers() == [(3, answer(3))]
    assert not reply.ended


async def test_who_waits_for_an_answer_gets_the_error_even_beside_answers() -> None:
    reply = Reply(n=3)
    waiting = asyncio.create_task(reply.wait_for_result())
    await until(lambda: reply._reader is not None)
    reply.finish(answer(0), 0)
    reply.fail(EngineError("it broke"))
    with pytest.raises(EngineError, match="it broke"):
        await asyncio.wait_for(waiting, 20)


@pytest.mark.parametrize("change", ["piece", "result", "error", "wake"])
async def test_every_change_wakes_the_reader(change: str) -> None:
    reply = Reply(streams=True)
    waiting = asyncio.create_task(reply.wait())
    await until(lambda: reply._reader is not None)
    if change == "piece":
        reply.push(Piece("a", (1,), None))
        reply.push(Piece("b", (2,), None))
        assert [piece.text for piece in reply.pieces] == ["a", "b"]
    elif change == "result":
        reply.finish(completion(1))
    elif change == "error":
        reply.fail(EngineError("it broke"))
    else:
        reply.wake()
    await asyncio.wait_for(waiting, 20)


async def test_a_reader_that_was_cancelled_is_forgotten() -> None:
    reply = Reply()
    waiting = asyncio.create_task(reply.wait())
    await until(lambda: reply._reader is not None)
    waiting.cancel()
    await asyncio.wait({waiting})
    reply.finish(completion(1))
    assert reply.ended


def test_a_reader_far_behind_is_told_of_until_half_is_read() -> None:
    reply, told, backpressure = Reply(streams=True), list[bool](), Backpressure()
    assert reply.backpressure is None
    reply.backpressure = backpressure
    reply.expect(2)
    backpressure.watch(told.append)
    for i in range(255):
        reply.push(Piece("a", (i,), None, index=i % 2))
    assert told == []
    reply.push(Piece("a", (255,), None))
    reply.push(Piece("a", (256,), None))
    assert told == [True]
    assert [reply.take_piece().token_ids[0] for _ in range(128)] == list(range(128))
    assert told == [True]
    assert reply.take_piece().token_ids == (128,)
    assert told == [True, False]
    for _ in range(200):
        reply.push(Piece("a", (0,), None))
    assert len(reply.take_pieces()) == 328
    assert told == [True, False, True, False]

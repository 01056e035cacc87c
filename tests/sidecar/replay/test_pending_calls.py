"""Who waits, who is sent, who is told: calls that have no link, no time, or killed a worker."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from link_double import a_call, a_relay, made, opts, texts, turn
from virtual_time import in_virtual_time

from pybatcher.calls.backpressure import CURRENT_BACKPRESSURE, Backpressure
from pybatcher.calls.completion import Piece
from pybatcher.calls.questions import Detokenize, ScoreContinuations
from pybatcher.calls.reply import Reply
from pybatcher.errors import (
    DeadlineExceededError,
    EngineFailedError,
    PybatcherError,
    QueueFullError,
)


async def test_a_cancelled_call_is_cancelled_there_and_not_sent_again() -> None:
    remote, reply = a_relay(), Reply(streams=True)
    ids = await remote.submit(a_call(), reply)
    link = made(remote)
    remote.cancel(ids)
    await turn()
    assert link.cancelled == [1]
    assert remote.pending.n_in_flight == 0
    link.lose(remote.link_lost)
    assert not made(remote).sent
    remote.cancel(ids)  # again: nothing


async def test_a_call_cancelled_while_there_is_no_link_is_never_sent() -> None:
    remote = a_relay()
    remote.cancel(await remote.submit(a_call(), Reply(streams=True)))
    await turn()
    assert not made(remote).sent


async def test_past_the_last_worker_everybody_gets_the_error_and_later_ones_too() -> None:
    remote, reply = a_relay(), Reply(streams=True)
    await remote.submit(a_call(), reply)
    asking = asyncio.ensure_future(remote.ask(Detokenize(token_ids=[1])))
    await turn()
    remote.link_lost(EngineFailedError("it died too often"), final=True)
    with pytest.raises(EngineFailedError, match="too often"):
        reply.result()
    with pytest.raises(EngineFailedError):
        await asking
    with pytest.raises(EngineFailedError):
        await remote.submit(a_call(), Reply(streams=True))


@in_virtual_time
async def test_while_there_is_no_link_deadlines_are_minded_here() -> None:
    remote = a_relay(clock=asyncio.get_running_loop().time)
    without, with_tokens = Reply(streams=True), Reply(streams=True)
    first = made(remote)
    await remote.submit(a_call(timeout=5.0), without)
    await remote.submit(a_call(timeout=5.0), with_tokens)
    assert 4999 < opts(first, 1)["timeout_ms"] <= 5000
    first.delta(2, " upon", 5)
    await asyncio.sleep(4.0)
    first.lose(remote.link_lost)
    await asyncio.sleep(0.99)
    assert not without.ended
    assert not with_tokens.ended
    await asyncio.sleep(0.02)
    with pytest.raises(DeadlineExceededError):
        without.result()
    assert with_tokens.result().finish_reason == "deadline"
    assert with_tokens.result().text == " upon"


async def test_who_is_past_its_deadline_when_a_worker_comes_is_not_sent() -> None:
    now = 100.0
    remote, reply = a_relay(clock=lambda: now), Reply(streams=True)
    await remote.submit(a_call(timeout=5.0), reply)
    now = 106.0
    link = made(remote)
    assert not link.sent
    with pytest.raises(DeadlineExceededError):
        reply.result()


async def test_the_cause_of_deaths_is_found_and_fails_alone() -> None:
    remote = a_relay(suspects=True)
    replies = [Reply(streams=True) for _ in range(3)]
    for reply in replies:
        await remote.submit(a_call(), reply)
    made(remote).lose(remote.link_lost)
    second = made(remote)
    assert len(second.in_flight) == 3
    second.lose(remote.link_lost)
    third = made(remote)
    assert len(third.in_flight) == 1  # the first one, alone
    late = Reply(streams=True)
    await remote.submit(a_call("later"), late)
    assert len(third.in_flight) == 1  # newcomers wait too
    third.delta(1, "x", 1)
    assert third.cancelled == [1]  # it is not the cause, and goes on when all have been tried
    (suspect,) = third.in_flight
    third.lose(remote.link_lost)
    assert not replies[1].ended
    again = made(remote)
    assert len(again.in_flight) == 1
    again.lose(remote.link_lost)
    del suspect
    with pytest.raises(EngineFailedError, match="this request failed"):
        replies[1].result()
    fourth = made(remote)
    (last,) = fourth.in_flight
    fourth.finish(last, "")
    assert replies[2].ended
    await turn()
    assert len(fourth.in_flight) == 2  # the first, from its token on, and the newcomer
    assert opts(fourth, fourth.in_flight[0])["output"] == [1]
    for call_id in fourth.in_flight:
        fourth.finish(call_id, "")
    assert replies[0].result().text == "x"
    assert late.ended


@pytest.mark.parametrize("has_link", [True, False])
async def test_if_the_one_that_runs_alone_is_cancelled_the_next_one_runs(has_link: bool) -> None:
    remote = a_relay(suspects=True)
    ids = [await remote.submit(a_call(), Reply(streams=True)) for _ in range(3)]
    for _ in range(2):
        made(remote).lose(remote.link_lost)
    third = made(remote) if has_link else None
    remote.cancel(ids[0])
    await turn()
    third = third or made(remote)
    (second,) = third.in_flight
    third.finish(second, "")
    await turn()
    late = Reply(streams=True)
    await remote.submit(a_call("later"), late)
    (last,) = third.in_flight
    third.finish(last, "")
    await turn()
    (newcomer,) = third.in_flight
    third.finish(newcomer, "")
    assert late.ended
    assert remote.pending.n_in_flight == 0


async def test_suspects_that_are_past_their_deadline_hold_nobody_up() -> None:
    now = 100.0
    remote = a_relay(suspects=True, clock=lambda: now)
    replies = [Reply(streams=True) for _ in range(400)]
    for reply in replies[:-1]:
        await remote.submit(a_call(timeout=5.0), reply)
    await remote.submit(a_call(), replies[-1])
    for _ in range(2):
        made(remote).lose(remote.link_lost)
    now = 106.0  # the loop was busy: no timer has run
    link = made(remote)
    for _ in replies:
        await turn()
    assert all(reply.failed for reply in replies[:-1])
    assert len(link.sent) == 1
    link.finish(1, "")
    assert replies[-1].ended


async def test_it_is_idle_when_nothing_is_in_flight() -> None:
    remote, reply = a_relay(), Reply(streams=True)
    await remote.pending.idle()
    await remote.submit(a_call(), reply)
    waiting = asyncio.ensure_future(remote.pending.idle())
    await turn()
    assert not waiting.done()
    made(remote).finish(1, "")
    await waiting


async def test_an_answer_that_makes_no_sense_fails_its_call_only() -> None:
    remote, replies = a_relay(), [Reply(streams=True), Reply(streams=True)]
    for reply in replies:
        await remote.submit(a_call(), reply)
    link = made(remote)
    link.end(1, {"text": 5})
    with pytest.raises(PybatcherError):
        replies[0].result()
    link.finish(2, "", 1)
    assert replies[1].ended


async def test_a_caller_whose_pieces_cannot_be_passed_on_harms_nobody() -> None:
    class Broken(Reply):
        def push(self, piece: Piece) -> None:
            raise RuntimeError("out of order")

    remote = a_relay()
    broken, reply = Broken(streams=True), Reply(streams=True)
    await remote.submit(a_call(), broken)
    await remote.submit(a_call(), reply)
    link = made(remote)
    link.delta(1, "x", 1)
    link.delta(2, "y", 2)
    assert link.cancelled == [1]
    with pytest.raises(EngineFailedError):
        broken.result()
    assert texts(reply) == "y"


async def test_prompts_in_flight_may_take_so_much_memory_and_no_more() -> None:
    remote, replies = a_relay(most_bytes=2500), [Reply(streams=True), Reply(streams=True)]
    await remote.submit(a_call("x" * 200), replies[0])
    with pytest.raises(QueueFullError, match="2500"):
        await remote.submit(a_call([1] * 100), replies[1])
    with pytest.raises(QueueFullError, match="2500"):
        await remote.submit(a_call("x", n=9), replies[1])
    assert remote.pending.n_in_flight == 1  # none of the nine
    link = made(remote)
    link.delta(1, "x" * 2500, 1)
    with pytest.raises(QueueFullError, match="2500"):  # its output counts as well
        await remote.submit(a_call("x"), replies[1])
    link.finish(1, "")
    await remote.submit(a_call("x" * 1000), replies[1])  # alone it may be larger
    assert len(link.in_flight) == 1


@in_virtual_time
async def test_who_was_let_in_once_is_let_in_again_however_full_the_next_worker_is() -> None:
    remote, reply = a_relay(), Reply(streams=True)
    await remote.submit(a_call(), reply)
    first = made(remote)
    first.delta(1, " upon", 5)
    first.lose(remote.link_lost)
    second = made(remote)
    second.end(1, error=QueueFullError("full", retry_after=5.0))
    await asyncio.sleep(4.99)
    assert not second.in_flight
    assert not reply.ended
    await asyncio.sleep(0.02)
    (call_id,) = second.in_flight
    second.finish(call_id, "")
    assert reply.result().text == " upon"


async def test_who_is_not_let_in_at_all_is_told() -> None:
    remote, reply = a_relay(), Reply(streams=True)
    link = made(remote)
    await remote.submit(a_call(), reply)
    link.end(1, error=QueueFullError("full", retry_after=0.5))
    with pytest.raises(QueueFullError):
        reply.result()


@in_virtual_time
async def test_deadlines_of_those_who_wait_for_their_turn_are_minded_too() -> None:
    remote = a_relay(suspects=True, clock=asyncio.get_running_loop().time)
    first, second, late = (Reply(streams=True) for _ in range(3))
    await remote.submit(a_call(), first)
    await remote.submit(a_call(timeout=3.0), second)
    for _ in range(2):
        made(remote).lose(remote.link_lost)
    made(remote)  # the first one is tried alone
    await remote.submit(a_call(timeout=4.0), late)
    await asyncio.sleep(2.99)
    assert not second.ended
    await asyncio.sleep(0.02)
    assert second.ended
    assert not late.ended
    await asyncio.sleep(1.0)
    assert not first.ended
    for reply in (second, late):
        with pytest.raises(DeadlineExceededError):
            reply.result()


async def test_a_kill_from_outside_makes_nobody_suspect() -> None:
    remote = a_relay(suspects=True)
    replies = [Reply(streams=True) for _ in range(3)]
    for reply in replies:
        await remote.submit(a_call(), reply)
    for _ in range(9):
        link = made(remote)
        assert len(link.in_flight) == 3
        link.lose(partial(remote.link_lost, is_evidence=False))
    assert not any(reply.ended for reply in replies)


async def test_what_nobody_reads_is_set_aside_there_and_over_the_next_link_too() -> None:
    remote, reply, backpressure = a_relay(), Reply(streams=True), Backpressure()
    reply.backpressure = backpressure
    await remote.submit(a_call(), reply)
    link = made(remote)
    assert link.notified == []
    backpressure.pause("it")
    assert link.notified == [("aside", [1, True])]
    link.delta(1, "a", 5)
    link.lose(remote.link_lost)
    backpressure.resume("it")  # while there is no link
    backpressure.pause("it")
    link = made(remote)
    assert link.notified == [("aside", [1, True])]
    link.finish(1, "b", 6)
    backpressure.resume("it")
    assert link.notified == [("aside", [1, True])]
    assert texts(reply) == "a"


@in_virtual_time
async def test_the_other_end_hears_now_and_then_of_a_reader_that_changes_its_mind() -> None:
    remote, reply, backpressure = a_relay(), Reply(streams=True), Backpressure()
    reply.backpressure = backpressure
    await remote.submit(a_call(), reply)
    link = made(remote)
    for _ in range(1000):
        backpressure.pause("it")
        backpressure.resume("it")
        await asyncio.sleep(0.001)
    told = [aside for _, (_, aside) in link.notified]
    assert 2 <= len(told) <= 42  # of 2000
    for _ in range(10):
        backpressure.pause("it")
        await asyncio.sleep(0.02)
        backpressure.resume("it")
        await asyncio.sleep(0.02)
    told = [aside for _, (_, aside) in link.notified]
    assert all(one != other for one, other in pairwise(told))
    backpressure.pause("it")
    await asyncio.sleep(1)
    assert link.notified[-1] == ("aside", [1, True])
    backpressure.resume("it")
    assert link.notified[-1] == ("aside", [1, False])
    link.finish(1, "b", 6)
    n_told = len(link.notified)
    backpressure.pause("it")
    await asyncio.sleep(1)
    assert len(link.notified) == n_told


async def test_a_question_is_set_aside_with_the_task_that_asks_it() -> None:
    remote, backpressure = a_relay(), Backpressure()
    CURRENT_BACKPRESSURE.set(backpressure)
    asking = asyncio.ensure_future(remote.ask(Detokenize(token_ids=[1])))
    await turn()
    link = made(remote)
    backpressure.pause("it")
    assert link.notified == [("aside", [1, True])]
    asking.cancel()
    await turn()
    backpressure.resume("it")
    assert link.notified == [("aside", [1, True])]


@in_virtual_time
async def test_a_question_has_its_deadline_without_a_link_and_the_time_left_with_one() -> None:
    remote = a_relay(clock=asyncio.get_running_loop().time)
    asked = ScoreContinuations(prompt="a", continuations=["b"], timeout=5.0, priority=3)
    asking = [asyncio.ensure_future(remote.ask(asked)) for _ in range(2)]
    await turn()
    await asyncio.sleep(3.0)
    first = made(remote)
    assert opts_of_score(first.sent[1]) == {"priority": 3, "timeout_ms": 2000.0}
    first.end(1, [])
    assert await asking[0] == []
    await asyncio.sleep(1.0)
    first.lose(remote.link_lost)
    second = made(remote)
    assert opts_of_score(second.sent[1]) == {"priority": 3, "timeout_ms": 1000.0}
    second.lose(remote.link_lost)
    await asyncio.sleep(0.99)
    assert not asking[1].done()
    await asyncio.sleep(0.02)
    with pytest.raises(
        DeadlineExceededError, match=r"no answer came within 5\.000 s; raise timeout"
    ):
        await asking[1]


def opts_of_score(sent: tuple[str, list[Any]]) -> dict[str, Any]:
    method, (_, _, opts) = sent
    assert method == "score"
    return {name: opts[name] for name in opts if name != "trace_headers"}

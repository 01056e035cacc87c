"""Calls go over a link that may be lost and made anew: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from link_double import LinkDouble

from pybatcher.call import Beside, Call
from pybatcher.completion import Piece
from pybatcher.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    EngineFailedError,
    InvalidRequestError,
    PybatcherError,
    QueueFullError,
)
from pybatcher.sidecar.courier import Courier
from pybatcher.sidecar.relay import Relay
from pybatcher.sidecar.wire import event_to_wire
from pybatcher.stream import Reply
from pybatcher.telemetry import RequestEvent


def a_call(content: Any = "Once", *, is_chat: bool = False, **sampling: Any) -> Call:
    timeout = sampling.pop("timeout", None)
    return Call(
        priority=0,
        timeout=timeout,
        namespace=None,
        content=content,
        is_chat=is_chat,
        params=None,
        sampling=sampling,
    )


def made(relay: Relay) -> LinkDouble:
    link = LinkDouble()
    relay.link_made(link)  # type: ignore[arg-type]
    return link


def a_relay(*, replays: bool = True, suspects: bool = False, **more: Any) -> Relay:
    return Relay(Courier(replays=replays, suspects=suspects, **more))


def opts(link: LinkDouble, call_id: int) -> dict[str, Any]:
    params = link.sent[call_id][1]
    found: dict[str, Any] = params[1] if len(params) > 1 else {}
    return found


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def texts(reply: Reply) -> str:
    return "".join(piece.text for piece in reply.pieces)


async def test_what_is_asked_before_there_is_a_link_waits_for_it() -> None:
    relay, reply = a_relay(), Reply(streams=True)
    await relay.submit(a_call(seed=3), reply)
    link = made(relay)
    (call_id,) = link.in_flight
    assert link.sent[call_id][0] == "generate"
    assert opts(link, call_id) == {"seed": 3, "stream": True}
    link.delta(call_id, " upon", 5)
    assert list(reply.pieces) == [Piece(" upon", (5,), None)]
    link.finish(call_id, " upon", 5)
    assert reply.result().text == " upon"
    assert relay.courier.n_in_flight == 0


async def test_after_a_loss_it_goes_on_from_the_tokens_it_has_with_the_same_seed() -> None:
    relay, reply = a_relay(), Reply(streams=True)
    await relay.submit(a_call(temperature=1.0), reply)
    first = made(relay)
    first.delta(1, " upon", 5)
    first.delta(1, " a", 6)
    first.lose(relay.link_lost)
    assert not reply.ended
    second = made(relay)
    assert opts(second, 1)["output"] == [5, 6]
    assert opts(second, 1)["seed"] == opts(first, 1)["seed"]
    second.delta(1, " time", 7)
    second.finish(1, " time", 7)
    whole = reply.result()
    assert (whole.text, whole.token_ids) == (" upon a time", (5, 6, 7))
    assert texts(reply) == whole.text
    assert relay.courier.replayed_requests == 1


async def test_without_replays_a_loss_is_told() -> None:
    relay, reply = a_relay(replays=False), Reply(streams=True)
    await relay.submit(a_call(), reply)
    made(relay).lose(relay.link_lost)
    with pytest.raises(ConnectionLostError):
        reply.result()
    assert relay.courier.n_in_flight == 0


async def test_without_replays_nothing_is_streamed_that_nobody_reads_in_pieces() -> None:
    relay, reply = a_relay(replays=False), Reply(streams=False)
    await relay.submit(a_call(), reply)
    assert "stream" not in opts(made(relay), 1)


async def test_samples_are_calls_of_their_own_and_each_goes_on_from_where_it_is() -> None:
    relay, reply = a_relay(), Reply(streams=True)
    await relay.submit(a_call(n=3, seed=1), reply)
    first = made(relay)
    seeds = {opts(first, i)["seed"] for i in (1, 2, 3)}
    assert len(seeds) == 3
    assert all("n" not in opts(first, i) for i in (1, 2, 3))
    first.delta(2, "b", 2)
    first.finish(1, "", reason="stop")
    first.lose(relay.link_lost)
    second = made(relay)
    assert [opts(second, i).get("output") for i in (1, 2)] == [[2], None]
    second.finish(1, "", reason="stop")
    second.finish(2, "")
    choices = reply.result().choices
    assert [choice.token_ids for choice in choices] == [(), (2,), ()]


async def test_if_one_sample_fails_the_others_are_taken_back() -> None:
    relay, reply = a_relay(), Reply(streams=False)
    await relay.submit(a_call(n=2), reply)
    link = made(relay)
    link.end(1, error=InvalidRequestError("no"))
    await turn()
    assert link.cancelled == [2]
    with pytest.raises(InvalidRequestError):
        reply.result()


async def test_a_cancelled_call_is_cancelled_there_and_not_sent_again() -> None:
    relay, reply = a_relay(), Reply(streams=True)
    ids = await relay.submit(a_call(), reply)
    link = made(relay)
    relay.cancel(ids)
    await turn()
    assert link.cancelled == [1]
    assert relay.courier.n_in_flight == 0
    link.lose(relay.link_lost)
    assert not made(relay).sent
    relay.cancel(ids)  # again: nothing


async def test_a_call_cancelled_while_there_is_no_link_is_never_sent() -> None:
    relay = a_relay()
    relay.cancel(await relay.submit(a_call(), Reply(streams=True)))
    await turn()
    assert not made(relay).sent


async def test_a_chat_is_read_once_and_goes_on_as_its_tokens() -> None:
    relay, reply = a_relay(), Reply(streams=True)
    messages = [{"role": "user", "content": "hi"}]
    link = made(relay)
    submitting = asyncio.ensure_future(relay.submit(a_call(messages, is_chat=True), reply))
    await turn()
    assert link.sent[1] == ("tokenize", [messages])
    link.end(1, [7, 8, 9])
    await submitting
    assert link.sent[2][0] == "generate"
    assert link.sent[2][1][0] == [7, 8, 9]


async def test_a_chat_without_replays_is_sent_as_it_is() -> None:
    relay = a_relay(replays=False)
    link = made(relay)
    messages = [{"role": "user", "content": "hi"}]
    await relay.submit(a_call(messages, is_chat=True), Reply(streams=False))
    assert link.sent[1][0] == "chat"


async def test_what_is_wrong_with_a_request_is_told_before_it_is_sent() -> None:
    relay = a_relay()
    link = made(relay)
    with pytest.raises(InvalidRequestError, match="temperature"):
        await relay.submit(a_call(temperature=-1), Reply(streams=False))
    with pytest.raises(InvalidRequestError, match="timeout"):
        await relay.submit(a_call(timeout=-1), Reply(streams=False))
    assert not link.sent


async def test_questions_are_asked_again() -> None:
    relay = a_relay()
    asking = asyncio.ensure_future(relay.detokenize([1, 2]))
    await turn()
    made(relay).lose(relay.link_lost)
    await turn()
    second = made(relay)
    assert second.sent[1] == ("detokenize", [[1, 2]])
    second.end(1, "text")
    assert await asking == "text"


async def test_a_question_that_nobody_waits_for_is_cancelled() -> None:
    relay = a_relay()
    link = made(relay)
    beside = Beside(priority=0, timeout=None, namespace=None)
    asking = asyncio.ensure_future(relay.score("a", ["b"], beside))
    await turn()
    asking.cancel()
    await turn()
    assert link.cancelled == [1]


async def test_past_the_last_worker_everybody_gets_the_error_and_later_ones_too() -> None:
    relay, reply = a_relay(), Reply(streams=True)
    await relay.submit(a_call(), reply)
    asking = asyncio.ensure_future(relay.detokenize([1]))
    await turn()
    relay.link_lost(EngineFailedError("it died too often"), final=True)
    with pytest.raises(EngineFailedError, match="too often"):
        reply.result()
    with pytest.raises(EngineFailedError):
        await asking
    with pytest.raises(EngineFailedError):
        await relay.submit(a_call(), Reply(streams=True))


async def test_while_there_is_no_link_deadlines_are_minded_here() -> None:
    now = 100.0
    relay = a_relay(clock=lambda: now)
    without, with_tokens = Reply(streams=True), Reply(streams=True)
    await relay.submit(a_call(timeout=0.01), without)
    await relay.submit(a_call(timeout=0.01), with_tokens)
    first = made(relay)
    assert 0 < opts(first, 1)["timeout_ms"] < 11
    first.delta(2, " upon", 5)
    now = 100.02
    first.lose(relay.link_lost)
    await asyncio.sleep(0.03)
    with pytest.raises(DeadlineExceededError):
        without.result()
    assert with_tokens.result().finish_reason == "deadline"
    assert with_tokens.result().text == " upon"


async def test_who_is_past_its_deadline_when_a_worker_comes_is_not_sent() -> None:
    now = 100.0
    relay, reply = a_relay(clock=lambda: now), Reply(streams=True)
    await relay.submit(a_call(timeout=5.0), reply)
    now = 106.0
    link = made(relay)
    assert not link.sent
    with pytest.raises(DeadlineExceededError):
        reply.result()


async def test_the_cause_of_deaths_is_found_and_fails_alone() -> None:
    relay = a_relay(suspects=True)
    replies = [Reply(streams=True) for _ in range(3)]
    for reply in replies:
        await relay.submit(a_call(), reply)
    made(relay).lose(relay.link_lost)
    second = made(relay)
    assert len(second.in_flight) == 3
    second.lose(relay.link_lost)
    third = made(relay)
    assert len(third.in_flight) == 1  # the first one, alone
    late = Reply(streams=True)
    await relay.submit(a_call("later"), late)
    assert len(third.in_flight) == 1  # newcomers wait too
    third.delta(1, "x", 1)
    assert third.cancelled == [1]  # it is not the cause, and goes on when all have been tried
    (suspect,) = third.in_flight
    third.lose(relay.link_lost)
    del suspect
    with pytest.raises(EngineFailedError, match="this request failed"):
        replies[1].result()
    fourth = made(relay)
    (last,) = fourth.in_flight
    fourth.finish(last, "")
    assert replies[2].ended
    assert len(fourth.in_flight) == 2  # the first, from its token on, and the newcomer
    assert opts(fourth, fourth.in_flight[0])["output"] == [1]
    for call_id in fourth.in_flight:
        fourth.finish(call_id, "")
    assert replies[0].result().text == "x"
    assert late.ended


async def test_prefixes_are_put_where_they_were_before_anybody_goes_on() -> None:
    relay = a_relay()
    first = made(relay)
    adding = asyncio.ensure_future(relay.add_prefix("manual", None, None))
    await turn()
    info = {"name": "p1", "namespace": None, "n_tokens": 3, "computed_tokens": 3, "holders": 1}
    first.end(1, info)
    assert (await adding).name == "p1"
    await relay.submit(a_call(), Reply(streams=True))
    first.lose(relay.link_lost)
    second = made(relay)
    assert [method for method, _ in second.sent.values()] == ["add_prefix", "generate"]
    assert second.sent[1][1] == ["manual", {"name": "p1"}]
    removing = asyncio.ensure_future(relay.remove_prefix("p1", None))
    await turn()
    second.end(1, info)
    second.end(3, None)
    await removing
    second.lose(relay.link_lost)
    assert [method for method, _ in made(relay).sent.values()] == ["generate"]


async def test_events_are_asked_for_as_long_as_somebody_wants_them() -> None:
    relay, seen = a_relay(), []
    detach = relay.attach(seen.append)
    first = made(relay)
    assert list(first.sent.values()) == [("watch", [True])]
    event = RequestEvent(
        when=1.0,
        request_id=1,
        namespace="",
        priority=0,
        finish_reason="stop",
        prompt_tokens=1,
        cached_tokens=0,
        generated_tokens=1,
        queued=0.0,
        ttft=None,
        itl=(),
        total=1.0,
        preemptions=0,
        recomputed_tokens=0,
    )
    assert relay.take_notification("event", event_to_wire(event))
    assert seen == [event]
    assert relay.take_notification("event", ["what", {}])  # of a newer version: nothing
    assert not relay.take_notification("beat", [])
    first.lose(relay.link_lost)
    second = made(relay)
    detach()
    assert list(second.sent.values()) == [("watch", [True]), ("watch", [False])]


async def test_it_is_idle_when_nothing_is_in_flight() -> None:
    relay, reply = a_relay(), Reply(streams=True)
    await relay.courier.idle()
    await relay.submit(a_call(), reply)
    waiting = asyncio.ensure_future(relay.courier.idle())
    await turn()
    assert not waiting.done()
    made(relay).finish(1, "")
    await waiting


async def test_an_answer_that_makes_no_sense_fails_its_call_only() -> None:
    relay, replies = a_relay(), [Reply(streams=True), Reply(streams=True)]
    for reply in replies:
        await relay.submit(a_call(), reply)
    link = made(relay)
    link.end(1, {"text": 5})
    with pytest.raises(PybatcherError):
        replies[0].result()
    link.finish(2, "", 1)
    assert replies[1].ended


async def test_a_caller_whose_pieces_cannot_be_passed_on_harms_nobody() -> None:
    class Broken(Reply):
        def push(self, piece: Piece) -> None:
            raise RuntimeError("out of order")

    relay = a_relay()
    broken, reply = Broken(streams=True), Reply(streams=True)
    await relay.submit(a_call(), broken)
    await relay.submit(a_call(), reply)
    link = made(relay)
    link.delta(1, "x", 1)
    link.delta(2, "y", 2)
    assert link.cancelled == [1]
    with pytest.raises(EngineFailedError):
        broken.result()
    assert texts(reply) == "y"


async def test_prompts_in_flight_may_take_so_much_memory_and_no_more() -> None:
    relay, replies = a_relay(most_bytes=250), [Reply(streams=True), Reply(streams=True)]
    await relay.submit(a_call("x" * 200), replies[0])
    with pytest.raises(QueueFullError, match="250"):
        await relay.submit(a_call([1] * 10), replies[1])
    link = made(relay)
    link.finish(1, "")
    await relay.submit(a_call("x" * 1000), replies[1])  # alone it may be larger
    assert len(link.in_flight) == 1


async def test_who_was_let_in_once_is_let_in_again_however_full_the_next_worker_is() -> None:
    relay, reply = a_relay(), Reply(streams=True)
    await relay.submit(a_call(), reply)
    first = made(relay)
    first.delta(1, " upon", 5)
    first.lose(relay.link_lost)
    second = made(relay)
    second.end(1, error=QueueFullError("full", retry_after=0.001))
    assert not reply.ended
    await asyncio.sleep(0.02)
    (call_id,) = second.in_flight
    second.finish(call_id, "")
    assert reply.result().text == " upon"


async def test_who_is_not_let_in_at_all_is_told() -> None:
    relay, reply = a_relay(), Reply(streams=True)
    link = made(relay)
    await relay.submit(a_call(), reply)
    link.end(1, error=QueueFullError("full", retry_after=0.5))
    with pytest.raises(QueueFullError):
        reply.result()


async def test_prefixes_are_told_when_they_are_there_again() -> None:
    relay = a_relay()
    first = made(relay)
    adding = asyncio.ensure_future(relay.add_prefix("manual", "p", None))
    await turn()
    info = {"name": "p", "namespace": None, "n_tokens": 3, "computed_tokens": 3, "holders": 1}
    first.end(1, info)
    await adding
    first.lose(relay.link_lost)
    asking = asyncio.ensure_future(relay.prefixes())
    await turn()
    second = made(relay)
    second.end(2, [])  # it has not heard of it yet
    await turn()
    assert not asking.done()
    second.end(1, info)
    await turn()
    second.end(3, [info])
    assert [one.name for one in await asking] == ["p"]

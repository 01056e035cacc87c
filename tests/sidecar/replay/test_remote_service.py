"""Calls go over a link that may be lost and made anew: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from link_double import LinkDouble, a_call, a_relay, made, opts, texts, turn
from virtual_time import in_virtual_time

from pybatcher.calls.completion import Piece
from pybatcher.calls.questions import (
    AddPrefix,
    Detokenize,
    EmbedTexts,
    ListPrefixes,
    RemovePrefix,
    ScoreContinuations,
)
from pybatcher.calls.reply import Reply
from pybatcher.calls.telemetry import RequestEvent
from pybatcher.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    RequestTooLongError,
)
from pybatcher.sidecar.protocol.wire import event_to_wire
from pybatcher.sidecar.replay.remote_service import RemoteService


async def test_what_is_asked_before_there_is_a_link_waits_for_it() -> None:
    remote, reply = a_relay(), Reply(streams=True)
    await remote.submit(a_call(seed=3), reply)
    link = made(remote)
    (call_id,) = link.in_flight
    assert link.sent[call_id][0] == "generate"
    assert opts(link, call_id) == {"seed": 3, "stream": True}
    link.delta(call_id, " upon", 5)
    assert list(reply.pieces) == [Piece(" upon", (5,), None)]
    link.finish(call_id, " upon", 5)
    assert reply.result().text == " upon"
    assert remote.pending.n_in_flight == 0


async def test_after_a_loss_it_goes_on_from_the_tokens_it_has_with_the_same_seed() -> None:
    remote, reply = a_relay(), Reply(streams=True)
    await remote.submit(a_call(temperature=1.0), reply)
    first = made(remote)
    first.delta(1, " upon", 5)
    first.delta(1, " a", 6)
    first.lose(remote.link_lost)
    assert not reply.ended
    second = made(remote)
    assert opts(second, 1)["output"] == [5, 6]
    assert opts(second, 1)["seed"] == opts(first, 1)["seed"]
    second.delta(1, " time", 7)
    second.finish(1, " time", 7)
    whole = reply.result()
    assert (whole.text, whole.token_ids) == (" upon a time", (5, 6, 7))
    assert texts(reply) == whole.text
    assert remote.pending.replayed_requests == 1


async def test_without_replays_a_loss_is_told() -> None:
    remote, reply = a_relay(replays=False), Reply(streams=True)
    await remote.submit(a_call(), reply)
    made(remote).lose(remote.link_lost)
    with pytest.raises(ConnectionLostError):
        reply.result()
    assert remote.pending.n_in_flight == 0


async def test_without_replays_nothing_is_streamed_that_nobody_reads_in_pieces() -> None:
    remote, reply = a_relay(replays=False), Reply(streams=False)
    await remote.submit(a_call(), reply)
    assert "stream" not in opts(made(remote), 1)


async def test_samples_are_calls_of_their_own_and_each_goes_on_from_where_it_is() -> None:
    remote, reply = a_relay(), Reply(streams=True)
    await remote.submit(a_call(n=3, seed=1), reply)
    first = made(remote)
    seeds = {opts(first, i)["seed"] for i in (1, 2, 3)}
    assert len(seeds) == 3
    assert all("n" not in opts(first, i) for i in (1, 2, 3))
    first.delta(2, "b", 2)
    first.finish(1, "", reason="stop")
    first.lose(remote.link_lost)
    second = made(remote)
    assert [opts(second, i).get("output") for i in (1, 2)] == [[2], None]
    second.finish(1, "", reason="stop")
    second.finish(2, "")
    choices = reply.result().choices
    assert [choice.token_ids for choice in choices] == [(), (2,), ()]


async def test_if_one_sample_fails_the_others_are_taken_back() -> None:
    remote, reply = a_relay(), Reply(streams=False)
    await remote.submit(a_call(n=2), reply)
    link = made(remote)
    link.end(1, error=InvalidRequestError("no"))
    await turn()
    assert link.cancelled == [2]
    with pytest.raises(InvalidRequestError):
        reply.result()


async def test_a_chat_is_read_once_and_goes_on_as_its_tokens() -> None:
    remote, reply = a_relay(), Reply(streams=True)
    messages = [{"role": "user", "content": "hi"}]
    link = made(remote)
    submitting = asyncio.ensure_future(remote.submit(a_call(messages, is_chat=True), reply))
    await turn()
    assert link.sent[1] == ("tokenize", [messages])
    link.end(1, [7, 8, 9])
    await submitting
    assert link.sent[2][0] == "chat"  # so that its response is read as one
    assert link.sent[2][1][0] == [7, 8, 9]


async def test_a_chat_without_replays_is_sent_as_it_is() -> None:
    remote = a_relay(replays=False)
    link = made(remote)
    messages = [{"role": "user", "content": "hi"}]
    await remote.submit(a_call(messages, is_chat=True), Reply(streams=False))
    assert link.sent[1][0] == "chat"


async def test_what_is_wrong_with_a_request_is_told_before_it_is_sent() -> None:
    remote = a_relay()
    link = made(remote)
    with pytest.raises(InvalidRequestError, match="temperature"):
        await remote.submit(a_call(temperature=-1), Reply(streams=False))
    with pytest.raises(InvalidRequestError, match="timeout"):
        await remote.submit(a_call(timeout=-1), Reply(streams=False))
    assert not link.sent


async def test_questions_are_asked_again() -> None:
    remote = a_relay()
    asking = asyncio.ensure_future(remote.ask(Detokenize(token_ids=[1, 2])))
    await turn()
    made(remote).lose(remote.link_lost)
    await turn()
    second = made(remote)
    assert second.sent[1] == ("detokenize", [[1, 2]])
    second.end(1, "text")
    assert await asking == "text"


async def test_a_question_that_nobody_waits_for_is_cancelled() -> None:
    remote = a_relay()
    link = made(remote)
    asking = asyncio.ensure_future(remote.ask(ScoreContinuations(prompt="a", continuations=["b"])))
    await turn()
    asking.cancel()
    await turn()
    assert link.cancelled == [1]


async def test_prefixes_are_put_where_they_were_before_anybody_goes_on() -> None:
    remote = a_relay()
    first = made(remote)
    adding = asyncio.ensure_future(remote.ask(AddPrefix(prefix="manual")))
    await turn()
    info = {"name": "p1", "namespace": None, "n_tokens": 3, "computed_tokens": 3, "holders": 1}
    first.end(1, info)
    assert (await adding).name == "p1"
    await remote.submit(a_call(), Reply(streams=True))
    first.lose(remote.link_lost)
    second = made(remote)
    assert [method for method, _ in second.sent.values()] == ["add_prefix", "generate"]
    assert second.sent[1][1] == ["manual", {"name": "p1"}]
    removing = asyncio.ensure_future(remote.ask(RemovePrefix(name="p1")))
    await turn()
    second.end(1, info)
    second.end(3, None)
    await removing
    second.lose(remote.link_lost)
    assert [method for method, _ in made(remote).sent.values()] == ["generate"]


async def test_events_are_asked_for_as_long_as_somebody_wants_them() -> None:
    remote, seen = a_relay(), []
    detach = remote.attach(seen.append)
    first = made(remote)
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
    assert remote.take_notification("event", event_to_wire(event))
    assert seen == [event]
    assert remote.take_notification("event", ["what", {}])  # of a newer version: nothing
    assert not remote.take_notification("beat", [])
    first.lose(remote.link_lost)
    second = made(remote)
    detach()
    assert list(second.sent.values()) == [("watch", [True]), ("watch", [False])]


INFO = {"name": "p", "namespace": None, "n_tokens": 3, "computed_tokens": 3, "holders": 1}


async def asked(
    remote: RemoteService, question: AddPrefix | RemovePrefix | ListPrefixes
) -> asyncio.Task[Any]:
    asking = asyncio.ensure_future(remote.ask(question))
    await turn()
    return asking


async def with_a_prefix(remote: RemoteService) -> LinkDouble:
    link = made(remote)
    adding = await asked(remote, AddPrefix(prefix="manual", name="p"))
    link.end(1, INFO)
    await adding
    return link


@in_virtual_time
async def test_the_deadline_of_a_prefix_is_sent_and_is_not_that_of_later_links() -> None:
    remote = a_relay(clock=asyncio.get_running_loop().time)
    adding = await asked(remote, AddPrefix(prefix="manual", name="p", timeout=5.0))
    await asyncio.sleep(1.0)
    first = made(remote)
    assert first.sent[1] == ("add_prefix", ["manual", {"name": "p", "timeout_ms": 4000.0}])
    first.end(1, INFO)
    await adding
    await asyncio.sleep(9.0)
    first.lose(remote.link_lost)
    assert made(remote).sent[1] == ("add_prefix", ["manual", {"name": "p"}])


@in_virtual_time
async def test_a_prefix_that_waits_for_a_link_past_its_deadline_is_not_added() -> None:
    remote = a_relay(clock=asyncio.get_running_loop().time)
    adding = await asked(remote, AddPrefix(prefix="manual", name="p", timeout=5.0))
    with pytest.raises(DeadlineExceededError, match=r"no answer came within 5\.000 s"):
        await adding
    assert not made(remote).sent


@in_virtual_time
async def test_a_prefix_that_is_late_at_the_other_end_is_not_added_again() -> None:
    remote = a_relay()
    first = made(remote)
    adding = await asked(remote, AddPrefix(prefix="manual", name="p", timeout=5.0))
    first.end(1, error=DeadlineExceededError("late"))
    with pytest.raises(DeadlineExceededError, match="late"):
        await adding
    first.lose(remote.link_lost)
    assert not made(remote).sent


@pytest.mark.parametrize(("waited", "left_ms"), [(1.0, 4000.0), (6.0, 1.0)])
@in_virtual_time
async def test_who_takes_over_has_the_time_that_is_left(waited: float, left_ms: float) -> None:
    clock = asyncio.get_running_loop().time
    before, after = a_relay(clock=clock), a_relay(clock=clock)
    old, new = made(before), made(after)
    adding = await asked(before, AddPrefix(prefix="manual", name="p", timeout=5.0))
    after.take_prefixes_of(before)
    await asyncio.sleep(waited)
    old.end(1, INFO)
    await turn()
    await turn()
    assert opts(new, 1) == {"name": "p", "timeout_ms": pytest.approx(left_ms)}
    new.end(1, INFO)
    await adding


@pytest.mark.parametrize("in_one_read", [False, True])
async def test_prefixes_are_told_when_they_are_there_again(in_one_read: bool) -> None:
    remote = a_relay()
    first = await with_a_prefix(remote)
    first.lose(remote.link_lost)
    asking = await asked(remote, ListPrefixes())
    second = made(remote)
    second.end(2, [])  # it has not heard of it yet
    if not in_one_read:
        await turn()
        assert not asking.done()
    second.end(1, INFO)
    await turn()
    assert not asking.done()
    second.end(3, [INFO])
    assert [one.name for one in await asking] == ["p"]


async def test_a_prefix_whose_removal_is_cancelled_is_removed_here_and_there() -> None:
    remote = a_relay()
    first = await with_a_prefix(remote)
    removing = await asked(remote, RemovePrefix(name="p"))
    removing.cancel()
    await turn()
    assert removing.cancelled()
    assert first.cancelled == []
    first.end(2, None)
    await turn()
    first.lose(remote.link_lost)
    assert not made(remote).sent


async def test_what_is_added_or_removed_while_another_takes_over_is_so_there_too() -> None:
    before, after = a_relay(), a_relay()
    old = made(before)
    for call_id, name in enumerate(("removed", "kept"), 1):
        adding = await asked(before, AddPrefix(prefix="manual", name=name))
        old.end(call_id, {**INFO, "name": name})
        await adding
    adding = await asked(before, AddPrefix(prefix="manual"))
    removing = await asked(before, RemovePrefix(name="removed"))
    new = made(after)
    after.take_prefixes_of(before)
    old.end(3, INFO)
    await turn()
    await turn()
    old.end(4, None)
    await turn()
    assert [(method, params[-1]) for method, params in new.sent.values()] == [
        ("add_prefix", {"name": "removed"}),
        ("add_prefix", {"name": "kept"}),
        ("add_prefix", "manual"),
        ("remove_prefix", "removed"),
    ]
    assert not adding.done()
    new.end(3, {**INFO, "name": "of the new one"})
    new.end(4, None)
    assert (await adding).name == "of the new one"
    await removing
    new.lose(after.link_lost)
    again = [params[-1]["name"] for _, params in made(after).sent.values()]
    assert again == ["kept", "of the new one"]


class Uncopied(list[int]):
    """Token ids that fail when they are read."""

    def __iter__(self) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("question", "field"),
    [
        (Detokenize(token_ids=Uncopied([1] * 2**19)), "token_ids"),
        (EmbedTexts(texts=["a", Uncopied([1] * 2**19)]), "texts[1]"),
        (ScoreContinuations(prompt="a", continuations=[Uncopied([1] * 2**19)]), "continuations[0]"),
        (AddPrefix(prefix=Uncopied([1] * 2**19)), "prefix"),
        (None, "prompt"),
    ],
)
async def test_too_many_token_ids_are_refused_before_they_are_copied(
    question: Any, field: str
) -> None:
    """With a longer context, which the other end is asked for, they are sent."""
    for length, is_refused in ((2**12, True), (2**20, False)):
        remote = a_relay()
        link = made(remote)
        call = a_call() if question is None else None
        if call is not None:
            call = replace(call, content=Uncopied([1] * 2**19))
        asked = remote.submit(call, Reply()) if call is not None else remote.ask(question)
        asking = asyncio.ensure_future(asked)
        await turn()
        (hello,) = link.in_flight
        assert link.sent[hello][0] == "hello"
        link.end(hello, {"limits": {"max_sequence_length": length}})
        error = RequestTooLongError if is_refused else AssertionError
        with pytest.raises((error, InvalidRequestError)) as raised:
            await asking
        if is_refused:
            assert raised.value.field == field  # type: ignore[attr-defined]
            assert str(raised.value).startswith(f"{field} has 524288 token ids; one call takes")
        else:
            assert not isinstance(raised.value, RequestTooLongError)


@pytest.mark.parametrize("is_score", [False, True])
async def test_a_long_question_is_asked_in_parts(is_score: bool) -> None:
    remote = a_relay()
    link = made(remote)
    items = ["a"] * 1024 + [[1] * 2**14, [2] * 2**14, [3] * 2**14]
    question: Any = EmbedTexts(texts=items, timeout=9.0)
    if is_score:
        question = ScoreContinuations(prompt="p", continuations=items, timeout=9.0)
    asking = asyncio.ensure_future(remote.ask(question))
    await turn()
    first, second = link.in_flight  # the third is asked when one of them has its answer
    sent = [link.sent[call][1][int(is_score)] for call in (first, second)]
    assert sent == [items[:1024], items[1024:1026]]
    assert 8000 < link.sent[first][1][-1]["timeout_ms"] <= 9000

    def answer(i: int) -> dict[str, Any]:
        return {"logprob": -float(i), "token_logprobs": [-float(i)], "token_ids": [i]}

    def end(call: int, *numbers: int) -> None:
        scores = [answer(i) for i in numbers]
        usage = {"of_each": [[1, 0]] * len(numbers)}
        vectors = {"embeddings": [[float(i)] for i in numbers], "usage": usage}
        link.end(call, scores if is_score else vectors)

    end(first, *range(1024))
    await turn()
    third = link.in_flight[-1]
    assert link.sent[third][1][int(is_score)] == items[1026:]
    end(third, 1026)
    end(second, 1024, 1025)
    found = await asking
    values = [-one.logprob if is_score else one.vector[0] for one in found]
    assert values == list(map(float, range(1027)))


async def test_an_error_of_a_part_has_the_place_in_the_whole() -> None:
    remote = a_relay()
    link = made(remote)
    asking = asyncio.ensure_future(remote.ask(EmbedTexts(texts=["a"] * 2000)))
    await turn()
    _, second = link.in_flight
    link.end(second, error=InvalidRequestError("texts[7] is '', x", field="texts[7]"))
    with pytest.raises(InvalidRequestError, match=r"^texts\[1031\] is '', x$") as raised:
        await asking
    assert raised.value.field == "texts[1031]"
    await turn()
    assert remote.pending.n_in_flight == 0

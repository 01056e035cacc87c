"""Sessions: what a client asks is done, and answered once, and what goes wrong ends one request."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from batcher_helpers import until
from session_helpers import Peer, ServiceOf, connected

from pybatcher import Completion
from pybatcher.calls.call import Call, Question
from pybatcher.calls.questions import Tokenize
from pybatcher.calls.reply import Reply
from pybatcher.sidecar.protocol.connection import Limits
from pybatcher.sidecar.protocol.wire import completion_from_wire, piece_of
from pybatcher.testing import FakeEngine, fake_batcher

OPTS = {"max_tokens": 6, "ignore_eos": True}
CHAT = [{"role": "user", "content": "hi"}]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def without_times(completion: Completion) -> Completion:
    timeline = replace(
        completion.timeline, submitted=0, admitted=0, first_token=0, finished=0, token_times=()
    )
    others = tuple(map(without_times, completion.other_choices))
    usage = replace(completion.usage, cached_tokens=0)
    return replace(completion, timeline=timeline, other_choices=others, usage=usage)


async def deltas_of(peer: Peer, msgid: int) -> tuple[list[Any], Any]:
    """The deltas before the Response, and what that has."""
    error, result = await peer.answer(msgid)
    assert error is None
    return peer.notifications("delta"), result


@pytest.mark.parametrize(
    "opts", [OPTS, {**OPTS, "logprobs": 2, "n": 3, "temperature": 1, "seed": 3}]
)
async def test_a_completion_is_what_the_batcher_makes(opts: dict[str, Any]) -> None:
    async with (
        fake_batcher(chat_template=TEMPLATE) as batcher,
        connected(ServiceOf(batcher)) as (_, peer),
    ):
        for method, content in (("generate", "hi"), ("generate", [1, 2]), ("chat", CHAT)):
            expected = await getattr(batcher, method)(content, **opts)
            got = completion_from_wire(await peer.ask(method, content, opts))
            assert without_times(got) == without_times(expected)
        assert peer.notifications("delta") == []  # nobody has asked to stream


async def test_a_stream_is_deltas_and_then_all_of_it() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        msgid = peer.request("generate", "hi", {**OPTS, "stream": True, "logprobs": 1})
        deltas, result = await deltas_of(peer, msgid)
        assert [id for id, _ in deltas] == [msgid] * len(deltas)
        assert [delta["seq"] for _, delta in deltas] == list(range(1, 7))
        pieces = [piece_of(delta) for _, delta in deltas]
        assert "".join(map(str, pieces)) == result["text"]
        assert [token for piece in pieces for token in piece.token_ids] == result["token_ids"]
        assert [delta["logprobs"][0] for _, delta in deltas] == result["logprobs"]
        assert pieces[-1].finish_reason == result["finish_reason"] == "length"


async def test_the_samples_of_a_stream_have_an_index() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        opts = {**OPTS, "stream": True, "n": 2, "temperature": 1.0, "id": "mine"}
        deltas, result = await deltas_of(peer, peer.request("generate", "hi", opts))
        assert {id for id, _ in deltas} == {"mine"}
        for index, choice in enumerate([result, *result["choices"]]):
            own = [delta for _, delta in deltas if delta.get("index", 0) == index]
            token_ids = [token for delta in own for token in delta["token_ids"]]
            assert token_ids == choice["token_ids"]


async def test_many_requests_are_answered_each_by_its_own() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        prompts = [f"prompt {i}" for i in range(50)]
        msgids = [peer.request("generate", prompt, OPTS) for prompt in prompts]
        for msgid, prompt in reversed(list(zip(msgids, prompts, strict=True))):
            error, result = await peer.answer(msgid)
            assert error is None
            assert result["text"] == (await batcher.generate(prompt, **OPTS)).text


async def test_hello_says_what_there_is() -> None:
    async with fake_batcher(n_parallel=3) as batcher:
        limits = Limits(max_frame=4096, max_depth=16, max_in_flight=5)
        async with connected(
            ServiceOf(batcher), limits=limits, hello_limits={"max_connections": 7}
        ) as (_, peer):
            told = await peer.ask("hello", {"client": "test"})
            assert told == await peer.ask("hello")
            assert told["model"] == "fake"
            assert told["limits"]["n_parallel"] == 3
            assert told["limits"]["max_connections"] == 7
            assert told["limits"]["max_frame"] == 4096
            for method in told["methods"]:
                error, _ = await peer.answer(peer.request(method, 1, 2, 3, 4))
                assert error is None or error["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("method", "params", "code", "message"),
    [
        ("generate", [], "invalid_request", "there are 0 params"),
        ("generate", [""], "invalid_request", "prompt is ''"),
        ("generate", ["hi", {"max_tokens": 0}], "invalid_request", "max_tokens is 0"),
        ("generate", [[1, 9999]], "invalid_request", "prompt[1] is 9999"),
        ("generate", ["x" * 9000], "too_long", "9001 tokens"),
        ("generate", ["hi", {"timeout_ms": 1e-6}], "deadline_exceeded", "no token came"),
        ("generate", ["hi", {"id": 1.5}], "invalid_request", "id is 1.5"),
        ("chat", ["hi"], "invalid_request", "messages is 'hi'"),
        ("embed", [["a"], {"pooling": "max"}], "invalid_request", "pooling is 'max'"),
        ("remove_prefix", ["x"], "invalid_request", "no prefix"),
        ("cancel", [], "invalid_request", "the params of cancel is []"),
        ("reload", [{}], "invalid_request", "a reload is not for this process"),
        ("sing", [], "unknown_method", "there is no method 'sing'; there are: add_prefix, cancel"),
        ("x" * 9999, [], "unknown_method", "there is no method 'xxx"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said(
    method: str, params: list[Any], code: str, message: str
) -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        error = await peer.fail(method, *params)
        assert error["code"] == code
        assert message in error["message"]
        assert error["retryable"] is False
        assert (await peer.ask("generate", "hi", OPTS))["finish_reason"] == "length"


async def test_a_full_queue_says_when_to_come_back() -> None:
    async with (
        fake_batcher(FakeEngine(step_delay=0.01), max_queue_requests=1) as batcher,
        connected(ServiceOf(batcher)) as (_, peer),
    ):
        msgids = [peer.request("generate", "hi", OPTS) for _ in range(20)]
        errors = [(await peer.answer(msgid))[0] for msgid in msgids]
        refused = [error for error in errors if error is not None]
        assert refused
        for error in refused:
            assert (error["code"], error["retryable"]) == ("queue_full", True)
            assert error["retry_after_ms"] > 0


async def test_an_id_in_flight_is_refused_and_the_first_goes_on() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        first = peer.request("generate", "hi", {**OPTS, "id": "a"})
        second = peer.request("score", "hi", ["b"], {"id": "a"})
        number = peer.request("generate", "hi", {**OPTS, "id": first})  # that of nobody
        error, _ = await peer.answer(second)
        assert (error["code"], error["retryable"]) == ("duplicate_id", False)
        assert error["message"] == "id 'a' is in flight on this connection; choose another"
        for msgid in (first, number):
            assert (await peer.answer(msgid))[0] is None
        await peer.ask("generate", "hi", {**OPTS, "id": "a"})  # it is free again


async def test_too_many_requests_in_flight_are_refused() -> None:
    async with (
        fake_batcher() as batcher,
        connected(ServiceOf(batcher), limits=Limits(max_in_flight=3)) as (_, peer),
    ):
        msgids = [peer.request("generate", "hi", OPTS) for _ in range(5)]
        codes = [((await peer.answer(msgid))[0] or {}).get("code") for msgid in msgids]
        assert codes == [None] * 3 + ["queue_full"] * 2


class Broken(ServiceOf):
    """Raises what nobody should, wherever it is asked for "boom"."""

    async def submit(self, call: Call, reply: Reply) -> range:
        if call.content == "boom":
            raise ZeroDivisionError("a defect")
        return await super().submit(call, reply)

    async def ask(self, question: Question[Any]) -> Any:
        if question == Tokenize(content="boom"):
            raise ZeroDivisionError("a defect")
        if question == Tokenize(content="odd"):
            return (2**80,)  # msgpack has no such numbers
        return await super().ask(question)


@pytest.mark.parametrize(
    ("method", "content", "message"),
    [
        ("generate", "boom", "ZeroDivisionError: a defect"),
        ("tokenize", "boom", "ZeroDivisionError: a defect"),
        ("tokenize", "odd", "OverflowError: "),
    ],
)
async def test_a_defect_ends_one_request_and_is_logged(
    method: str, content: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_batcher() as batcher, connected(Broken(batcher)) as (session, peer):
        other = peer.request("generate", "hi", OPTS)
        error = await peer.fail(method, content)
        assert error["code"] == "engine_failed"
        assert error["message"].startswith(message)
        assert error["retryable"] is False
        assert (await peer.answer(other))[0] is None
        assert session.n_in_flight == 0
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pybatcher.sidecar", logging.ERROR)
    assert record.exc_info is not None


async def test_a_delta_that_cannot_be_sent_ends_its_request_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd(ServiceOf):
        async def submit(self, call: Call, reply: Reply) -> range:
            if call.content == "odd":
                push = reply.push
                reply.push = lambda piece: push(replace(piece, text=object()))  # type: ignore
            return await super().submit(call, reply)

    async with fake_batcher() as batcher, connected(Odd(batcher)) as (_, peer):
        long = {"max_tokens": 500, "ignore_eos": True, "stream": True}
        other = peer.request("generate", "hi", {**OPTS, "stream": True})
        error = await peer.fail("generate", "odd", long)
        assert error["code"] == "engine_failed"
        assert (await peer.answer(other))[0] is None
        await until(lambda: batcher.statistics().cancelled == 1)
    assert len(caplog.records) == 1


async def test_an_owner_may_add_methods_and_tell_things() -> None:
    async def double(params: list[Any]) -> object:
        return params[0] * 2

    async with (
        fake_batcher() as batcher,
        connected(ServiceOf(batcher), methods={"double": double}) as (session, peer),
    ):
        assert await peer.ask("double", 21) == 42
        assert (await peer.fail("double"))["message"].startswith("IndexError")
        session.notify("news", [1])
        assert await peer.frame() == [2, "news", [1]]
        assert session.peer.startswith("process ")


async def test_unknown_notifications_are_ignored() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        for params in ([], [1], [1, 2], [None, None], [[], {}], [b"\xff", 5]):
            for method in ("sing", "ack", "cancel", "delta"):
                peer.notify(method, *params)
        assert await peer.ask("health")

"""Requests in flight end once, whatever races: answers, cancels, acknowledgements, ends."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest
from batcher_helpers import until
from session_helpers import Peer, ServiceOf, connected

from pybatcher import EngineFailedError
from pybatcher.calls.call import Call, Question
from pybatcher.calls.completion import Piece
from pybatcher.calls.questions import Tokenize
from pybatcher.calls.reply import Reply
from pybatcher.sidecar.session.in_flight import InFlightOutput
from pybatcher.testing import FakeEngine, fake_batcher

LONG = {"max_tokens": 5000, "ignore_eos": True}
SHORT = {"max_tokens": 5, "ignore_eos": True}


async def test_a_cancelled_stream_ends_with_its_own_response() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (session, peer):
        stream = peer.request("generate", "hi", {**LONG, "stream": True, "id": "a"})
        while (await peer.frame())[1] != "delta":
            pass
        cancel = peer.request("cancel", "a")
        error, result = await peer.answer(stream)
        assert result is None
        assert error == {
            "code": "cancelled",
            "message": "the request was cancelled",
            "retryable": False,
        }
        assert await peer.answer(cancel) == [None, True]
        assert session.n_in_flight == 0
        peer.notifications("delta")
        assert await peer.ask("cancel", "a") is False
        assert await peer.ask("health")
        await until(lambda: batcher.statistics().cancelled == 1)
        assert peer.notifications("delta") == []


@pytest.mark.parametrize("opts", [{}, {"id": "a"}, {"id": 77}])
async def test_a_request_is_cancelled_by_its_name_also_without_an_answer(
    opts: dict[str, Any],
) -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        msgid = peer.request("generate", "hi", {**LONG, **opts})
        peer.notify("cancel", opts.get("id", msgid))
        assert (await peer.answer(msgid))[0]["code"] == "cancelled"
    assert batcher.statistics().running == batcher.statistics().queued == 0


async def test_nothing_else_is_cancelled() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        first = peer.request("generate", "hi", LONG)
        assert first == 1
        for id in (2, "1", 1.0, True, None, [], {}, b"1"):
            assert await peer.ask("cancel", id) is False
        assert await peer.ask("cancel", 1) is True
        other = peer.request("generate", "hi", {**LONG, "id": "é"})
        assert await peer.ask("cancel", "é".encode()) is True
        for msgid in (first, other):
            assert (await peer.answer(msgid))[0]["code"] == "cancelled"


@pytest.mark.parametrize("way", ["refused", "unread"])
async def test_of_an_output_that_has_ended_nothing_is_left(way: str) -> None:
    """The server's garbage is collected rarely: a circle of references would keep its prompt."""
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (session, peer):
        await peer.ask("health")
        gc.collect()
        gc.disable()
        try:
            if way == "refused":
                assert (await peer.fail("generate", "x" * 10**5))["code"] == "too_long"
            else:
                msgid = peer.request("generate", "hi", {**LONG, "stream": True, "window": 1})
                await until(lambda: bool(session._in_flight))
                (output,) = session._in_flight.values()
                await until(lambda: output.backpressure.is_paused)
                del output
                peer.notify("cancel", msgid)
                assert (await peer.answer(msgid))[0]["code"] == "cancelled"
                await until(lambda: batcher.statistics().running == 0)
            await peer.ask("health")
            assert [one for one in gc.get_objects() if isinstance(one, InFlightOutput)] == []
        finally:
            gc.enable()


class Gate(ServiceOf):
    """Lets nobody through before it is open: as a long prompt does while it is tokenised."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reached = 0
        self.open = asyncio.Event()
        self.is_deaf = False

    async def _wait(self) -> None:
        self.reached += 1
        while not self.open.is_set():
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                if not self.is_deaf:
                    raise

    async def submit(self, call: Call, reply: Reply) -> range:
        await self._wait()
        return await super().submit(call, reply)

    async def ask(self, question: Question[Any]) -> Any:
        if isinstance(question, Tokenize):
            await self._wait()
        return await super().ask(question)


@pytest.mark.parametrize("method", ["generate", "tokenize"])
@pytest.mark.parametrize("is_deaf", [False, True])
@pytest.mark.parametrize("has_begun", [False, True])
async def test_what_is_cancelled_on_the_way_is_not_sent(
    method: str, is_deaf: bool, has_begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_batcher() as batcher:
        gate = Gate(batcher)
        gate.is_deaf = is_deaf
        async with connected(gate) as (_, peer):
            msgid = peer.request(method, "hi")
            if has_begun:
                await until(lambda: gate.reached == 1)
            assert await peer.ask("cancel", msgid) is True
            assert (await peer.answer(msgid))[0]["code"] == "cancelled"
            gate.open.set()
            assert await peer.ask("health")
        if is_deaf and has_begun and method == "generate":  # it was sent, and taken back
            await until(lambda: batcher.statistics().cancelled == 1)
    statistics = batcher.statistics()
    assert statistics.completed == statistics.failed == 0
    assert caplog.records == []


async def test_a_question_is_cancelled_by_its_id() -> None:
    async with (
        fake_batcher(FakeEngine(step_delay=0.01)) as batcher,
        connected(ServiceOf(batcher)) as (_, peer),
    ):
        msgid = peer.request("score", "hi", ["a"] * 200, {"id": "s"})
        await until(lambda: batcher.statistics().running > 0)
        assert await peer.ask("cancel", "s") is True
        assert (await peer.answer(msgid))[0]["code"] == "cancelled"
        await until(lambda: batcher.statistics().running == batcher.statistics().queued == 0)
        assert batcher.statistics().cancelled > 0


async def test_a_task_that_somebody_else_cancels_is_answered() -> None:
    async with fake_batcher() as batcher:
        gate = Gate(batcher)
        async with connected(gate) as (session, peer):
            for method in ("generate", "tokenize"):
                msgid = peer.request(method, "hi")
                await until(lambda: session.n_in_flight == 1)
                (request,) = session._in_flight.values()
                assert request.task is not None
                request.task.cancel()
                assert (await peer.answer(msgid))[0]["code"] == "cancelled"


async def test_a_window_is_kept_and_the_rest_comes_with_the_acknowledgement() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        expected = await batcher.generate("hi", max_tokens=200, ignore_eos=True)
        opts = {"max_tokens": 200, "ignore_eos": True, "stream": True, "id": "w", "window": 1}
        msgid = peer.request("generate", "hi", opts)
        assert (await peer.frame())[2][1]["seq"] == 1
        await until(lambda: batcher.statistics().completed == 2)
        assert await peer.ask("health")
        assert peer.notifications("delta") == []
        peer.notify("ack", "w", 1)
        error, result = await peer.answer(msgid)
        assert error is None
        ((id, delta),) = peer.notifications("delta")
        assert (id, delta["seq"], delta["finish_reason"]) == ("w", 2, "length")
        assert tuple(delta["token_ids"]) == expected.token_ids[1:]
        assert result["text"] == expected.text
        assert await peer.ask("cancel", "w") is False


async def test_an_end_that_waits_for_an_acknowledgement_can_be_cancelled() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (session, peer):
        msgid = peer.request("generate", "hi", {**SHORT, "stream": True, "window": 1})
        await until(lambda: batcher.statistics().completed == 1)
        assert session.n_in_flight == 1
        assert await peer.ask("cancel", msgid) is True
        assert (await peer.answer(msgid))[0]["code"] == "cancelled"
        assert len(peer.notifications("delta")) == 1


async def test_a_client_that_acknowledges_nothing_has_its_answer_all_the_same() -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        msgid = peer.request("generate", "hi", {**SHORT, "stream": True, "window": 3})
        error, result = await peer.answer(msgid)
        assert error is None
        deltas = [delta for _, delta in peer.notifications("delta")]
        assert [delta["seq"] for delta in deltas] == [1, 2, 3]
        assert "".join(delta["text"] for delta in deltas) == result["text"]


async def test_an_error_comes_after_what_there_was() -> None:
    class Failing(ServiceOf):
        async def submit(self, call: Call, reply: Reply) -> range:
            ids = await super().submit(call, reply)
            replies.append(reply)
            return ids

    replies: list[Reply] = []
    async with fake_batcher() as batcher, connected(Failing(batcher)) as (_, peer):
        msgid = peer.request("generate", "hi", {**LONG, "stream": True, "window": 1})
        await peer.frame()
        await until(lambda: batcher.statistics().generated_tokens > 3)
        (reply,) = replies
        reply.fail(EngineFailedError("it broke"))
        reply.fail(EngineFailedError("twice"))
        reply.push(Piece("late", (1,), None))
        assert peer.notifications("delta") == []
        peer.notify("ack", msgid, 1)
        error, _ = await peer.answer(msgid)
        assert (error["code"], error["message"]) == ("engine_failed", "it broke")
        ((_, delta),) = peer.notifications("delta")
        assert len(delta["token_ids"]) > 1
        assert "late" not in delta["text"]
        batcher._running_service().cancel(range(1, 2))


async def _play(peer: Peer, seed: int) -> None:
    """Ask and cancel at random; count the answers."""
    dice = random.Random(seed)
    asked: dict[int, list[Any]] = {}
    n_cancels = n_true = 0
    for _ in range(60):
        if dice.random() < 0.6 or not asked:
            opts = {"max_tokens": dice.randint(1, 12), "ignore_eos": True}
            opts |= {"stream": dice.random() < 0.5}
            prompt = dice.choice(["hi", "hello " * 300])
            asked[peer.request("generate", prompt, opts)] = []
        else:
            n_cancels += 1
            asked[peer.request("cancel", dice.choice(list(asked)))] = []
        if dice.random() < 0.5:
            await peer.writer.drain()
            await asyncio.sleep(dice.choice([0, 0, 0.001]))
    last = peer.request("health")
    asked[last] = []
    while not all(asked.values()):
        frame = await peer.frame()
        if frame[0] == 1:
            asked[frame[1]].append(frame[2:])
        else:
            assert asked[frame[2][0]] == []  # no delta after the answer
    cancelled = 0
    for answers in asked.values():
        ((error, result),) = answers
        n_true += result is True
        cancelled += error is not None and error["code"] == "cancelled"
    assert cancelled == n_true <= n_cancels


async def test_whatever_races_each_request_has_one_answer() -> None:
    async with fake_batcher() as batcher:
        for seed in range(8):
            async with connected(ServiceOf(batcher)) as (session, peer):
                await _play(peer, seed)
                assert session.n_in_flight == 0
        await until(lambda: batcher.statistics().running == batcher.statistics().queued == 0)


async def test_what_the_client_sets_aside_has_no_rows_beside_others() -> None:
    engine = FakeEngine(step_delay=0.002)
    async with fake_batcher(engine) as batcher, connected(ServiceOf(batcher)) as (_, peer):
        unread = peer.request("generate", "hi", {"max_tokens": 60, "ignore_eos": True})
        peer.notify("aside", unread, True)
        for odd in ([], [unread], [unread, 2], [unread, None], ["none", True], [{}, True]):
            peer.notify("aside", *odd)
        asked = peer.request("generate", "ho", {"max_tokens": 30, "ignore_eos": True})
        assert (await peer.answer(asked))[0] is None
        # Before the second one came, and in the step that was under way when it did.
        assert sum(len(plan.entries) == 2 for plan in engine.plans) <= 1
        peer.notify("aside", unread, False)
        error, made = await peer.answer(unread)
        assert error is None
        alone = await batcher.generate("hi", max_tokens=60, ignore_eos=True)
        assert made["token_ids"] == list(alone.token_ids)


async def test_questions_are_set_aside_too() -> None:
    engine = FakeEngine(step_delay=0.002)
    async with fake_batcher(engine) as batcher, connected(ServiceOf(batcher)) as (_, peer):
        unread = peer.request("score", "hi", ["a" * 5 for _ in range(40)])
        peer.notify("aside", unread, True)
        asked = peer.request("generate", "ho", {"max_tokens": 30, "ignore_eos": True})
        assert (await peer.answer(asked))[0] is None
        first = len(engine.plans)
        assert len((await peer.answer(unread))[1]) == 40
        assert len(engine.plans) > first


@pytest.mark.slow
async def test_a_client_that_acknowledges_nothing_is_set_aside_while_others_are_served() -> None:
    engine = FakeEngine(step_delay=0.001)
    async with fake_batcher(engine) as batcher, connected(ServiceOf(batcher)) as (_, peer):
        opts = {"max_tokens": 400, "ignore_eos": True, "stream": True, "window": 4}
        stopped = peer.request("generate", "hi", opts)
        others = [
            peer.request("generate", "ho", {"max_tokens": 350, "ignore_eos": True}) for _ in "ab"
        ]
        for other in others:
            assert (await peer.answer(other))[0] is None
        assert sum(len(plan.entries) == 3 for plan in engine.plans) < 150
        await until(lambda: batcher.statistics().completed == 3)  # alone it goes on
        peer.notify("ack", stopped, 4)
        peer.notify("ack", stopped, 10)
        assert (await peer.answer(stopped))[1]["usage"]["completion_tokens"] == 400

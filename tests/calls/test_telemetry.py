"""What handlers are told of steps and requests, and that they harm nobody."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
import weakref
from collections import Counter

import pytest
from batcher_helpers import until, wait_for

import pybatcher.calls.telemetry
import pybatcher.serving.request_state
from pybatcher import (
    BatcherClosedError,
    BlockingBatcher,
    ConfigError,
    DeadlineExceededError,
    QueueFullError,
    RequestEvent,
    StepEvent,
    TelemetryEvent,
)
from pybatcher.scheduling import Scheduler, StepPlan
from pybatcher.testing import FakeClock, FakeEngine, fake_batcher

PROMPT = "Once upon a time"


class Log:
    """A handler that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[TelemetryEvent] = []
        self.threads: set[int] = set()

    def __call__(self, event: TelemetryEvent) -> None:
        self.events.append(event)
        self.threads.add(threading.get_ident())

    @property
    def steps(self) -> list[StepEvent]:
        return [event for event in self.events if isinstance(event, StepEvent)]

    @property
    def requests(self) -> list[RequestEvent]:
        return [event for event in self.events if isinstance(event, RequestEvent)]

    @property
    def reasons(self) -> Counter[str]:
        return Counter(event.finish_reason for event in self.requests)


# -- steps ------------------------------------------------------------------------------------


async def test_a_step_event_for_each_pass_with_its_rows() -> None:
    engine, log = FakeEngine(), Log()
    async with fake_batcher(engine, n_batch=20, max_draft_tokens=4) as batcher:
        batcher.attach(log)
        await asyncio.gather(*(batcher.generate("ab" * i, max_tokens=30) for i in range(1, 9)))
        counts = batcher.statistics()
    assert [(s.decode_rows, s.prefill_rows, s.draft_rows, s.n_sequences) for s in log.steps] == [
        (plan.decode_rows, plan.prefill_rows, plan.draft_rows, len(plan.entries))
        for plan in engine.plans
    ]
    assert len(log.steps) == counts.steps
    assert sum(s.decode_rows + s.prefill_rows + s.draft_rows for s in log.steps) == (
        counts.computed_tokens
    )
    assert {s.kv_total_blocks for s in log.steps} == {counts.kv_total_blocks}
    in_use = [s.kv_total_blocks - s.kv_free_blocks - s.kv_cached_blocks for s in log.steps]
    assert in_use[0] > 0
    assert in_use[-1] == 0


async def test_the_seconds_of_a_step_and_those_of_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, log = FakeClock(100.0), Log()
    apply = Scheduler.apply

    def slow_apply(*args: object) -> object:
        clock.advance(0.25)
        return apply(*args)

    monkeypatch.setattr(Scheduler, "apply", slow_apply)
    engine = FakeEngine(before_step=lambda plan: clock.advance(0.5))
    async with fake_batcher(engine, clock=clock, batch_size=1) as batcher:
        batcher.attach(log)
        await batcher.generate(PROMPT, max_tokens=3, ignore_eos=True)
    assert [(s.when, s.seconds, s.engine_seconds) for s in log.steps] == [
        (100.75, 0.75, 0.5),
        (101.5, 0.75, 0.5),
        (102.25, 0.75, 0.5),
    ]


async def test_a_step_event_says_who_waits_and_runs() -> None:
    log = Log()
    async with fake_batcher(FakeEngine(n_parallel=2), batch_size=5, batch_timeout=0.05) as batcher:
        batcher.attach(log)
        await asyncio.gather(*(batcher.generate([1, 2, 3], max_tokens=2) for _ in range(5)))
    first, last = log.steps[0], log.steps[-1]
    assert (first.queued, first.queued_tokens, first.running) == (3, 9, 2)
    assert (last.queued, last.queued_tokens, last.running) == (0, 0, 0)


# -- requests ---------------------------------------------------------------------------------


async def test_the_event_of_a_request_is_its_completion() -> None:
    log = Log()
    async with fake_batcher() as batcher:
        batcher.attach(log)
        completion = await batcher.generate(PROMPT, max_tokens=9, namespace="tenant")
    (event,) = log.requests
    assert event.namespace == "tenant"
    assert event.finish_reason == completion.finish_reason
    assert event.prompt_tokens == completion.usage.prompt_tokens
    assert event.cached_tokens == completion.usage.cached_tokens
    assert event.generated_tokens == completion.usage.completion_tokens
    timeline = completion.timeline
    assert (event.queued, event.ttft, event.itl) == (timeline.queued, timeline.ttft, timeline.itl)
    assert (event.when, event.total) == (
        timeline.finished,
        timeline.finished - timeline.submitted,
    )


async def test_one_event_for_each_request_however_it_ends() -> None:
    draw, log = random.Random(4), Log()
    engine = FakeEngine(n_parallel=4, step_delay=0.0003)

    def fail_sometimes(plan: StepPlan) -> dict[int, str]:
        drawing = [entry.seq_id for entry in plan.entries if entry.sample]
        return {drawing[0]: "no luck"} if drawing and len(engine.plans) % 20 == 0 else {}

    engine.fail_sequences = fail_sometimes
    async with fake_batcher(engine, max_queue_requests=40) as batcher:
        batcher.attach(log)

        async def ask() -> None:
            await asyncio.sleep(draw.random() * 0.1)
            await batcher.generate(
                [draw.randrange(256)] * draw.randrange(1, 90),
                max_tokens=draw.randrange(1, 60),
                stop="q",
                timeout=draw.choice([None, None, None, 0.02]),
            )

        tasks = [asyncio.create_task(ask()) for _ in range(150)]
        for task in draw.sample(tasks, 40):
            await asyncio.sleep(0.002)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        counts = batcher.statistics()
    assert len(log.requests) == len({e.request_id for e in log.requests}) == counts.submitted
    reasons = log.reasons
    assert reasons["stop"] + reasons["length"] == counts.completed
    assert reasons["cancelled"] == counts.cancelled
    assert reasons["deadline"] + reasons["DeadlineExceededError"] == counts.expired
    assert reasons["EngineFailedError"] == counts.failed
    assert min(counts.completed, counts.cancelled, counts.expired, counts.failed) > 0
    assert sum(e.cached_tokens for e in log.requests) == counts.cached_tokens


async def test_those_that_never_ran() -> None:
    """Cancelled, expired and closed under while they wait; and the refused one, who has none."""
    clock, go_on, log = FakeClock(), threading.Event(), Log()
    engine = FakeEngine(n_parallel=1, before_step=lambda plan: wait_for(go_on))
    batcher = fake_batcher(engine, clock=clock, batch_size=1, max_queue_requests=3)
    batcher.attach(log)
    async with batcher:
        ahead = asyncio.create_task(batcher.generate(PROMPT, max_tokens=2, ignore_eos=True))
        await until(lambda: batcher.statistics().running == 1)
        waiting = [
            asyncio.create_task(batcher.generate(PROMPT, max_tokens=2, timeout=timeout))
            for timeout in (None, 2.0, None)
        ]
        await until(lambda: batcher.statistics().queued == 3)
        with pytest.raises(QueueFullError):
            await batcher.generate(PROMPT)
        clock.advance(3.0)
        waiting[0].cancel()
        await until(lambda: batcher.statistics().cancelled == 1)
        closing = asyncio.create_task(batcher.close(drain=False))
        await asyncio.sleep(0)
        go_on.set()
        await closing
        ends = await asyncio.gather(ahead, *waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [
        BatcherClosedError,
        asyncio.CancelledError,
        BatcherClosedError,
        BatcherClosedError,
    ]
    assert log.reasons == {"cancelled": 1, "BatcherClosedError": 3}
    assert Counter((e.queued, e.ttft, e.total) for e in log.requests) == {
        (0.0, None, 3.0): 1,
        (3.0, None, 3.0): 3,
    }


async def test_expired_in_the_queue() -> None:
    clock, log = FakeClock(), Log()
    async with fake_batcher(clock=clock, batch_size=9, batch_timeout=0.01) as batcher:
        batcher.attach(log)
        task = asyncio.create_task(batcher.generate(PROMPT, timeout=0.05))
        await until(lambda: batcher.statistics().queued == 1)
        clock.advance(2.5)
        with pytest.raises(DeadlineExceededError):
            await task
    assert [(e.finish_reason, e.queued) for e in log.requests] == [("DeadlineExceededError", 2.5)]


async def test_an_engine_that_fails_ends_them_all() -> None:
    log, engine = Log(), FakeEngine()

    def fail(plan: object) -> None:
        if len(engine.plans) == 3:
            raise OSError("the weights are gone")

    engine.before_step = fail
    async with fake_batcher(engine, max_restarts=0) as batcher:
        batcher.attach(log)
        await asyncio.gather(
            *(batcher.generate(PROMPT, max_tokens=9, ignore_eos=True) for _ in range(4)),
            return_exceptions=True,
        )
    assert log.reasons == {"EngineFailedError": 4}
    assert len(log.steps) == 2, "a step that raised has no event"


# -- handlers ---------------------------------------------------------------------------------


async def test_handlers_come_and_go_at_any_time_and_run_on_the_loop() -> None:
    early, late, brief, twice = Log(), Log(), Log(), Log()
    batcher = fake_batcher(batch_size=1)
    batcher.attach(early)
    detach_brief, detach_once = batcher.attach(brief), batcher.attach(twice)
    batcher.attach(twice)
    async with batcher:
        await batcher.generate(PROMPT, max_tokens=1)
        detach_brief()
        detach_brief()
        detach_once()
        batcher.attach(late)
        await batcher.generate(PROMPT, max_tokens=1)
    assert [len(log.requests) for log in (early, brief, twice, late)] == [2, 1, 3, 1]
    assert early.threads == {threading.get_ident()}


async def test_one_attached_in_the_middle_of_a_step_is_told_of_the_next() -> None:
    inside, go_on, log = threading.Event(), threading.Event(), Log()

    def block(plan: object) -> None:
        inside.set()
        wait_for(go_on)

    async with fake_batcher(FakeEngine(before_step=block)) as batcher:
        task = asyncio.create_task(batcher.generate(PROMPT, max_tokens=3, ignore_eos=True))
        await until(inside.is_set)
        batcher.attach(log)
        go_on.set()
        await task
    assert (len(log.steps), len(log.requests)) == (2, 1)


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), asyncio.CancelledError()])
async def test_a_handler_that_raises_is_detached_with_a_line_and_harms_nobody(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[TelemetryEvent] = []
    log = Log()

    def broken(event: TelemetryEvent) -> None:
        calls.append(event)
        raise error

    async with fake_batcher() as batcher:
        batcher.attach(broken)
        batcher.attach(log)
        completion = await batcher.generate(PROMPT, max_tokens=5, ignore_eos=True)
        assert batcher.health().ok
    assert len(completion.token_ids) == 5
    assert len(calls) == 1
    assert (len(log.steps), len(log.requests)) == (5, 1)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pybatcher", logging.ERROR)
    assert "broken" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error


async def test_a_handler_that_another_one_detaches_hears_no_more() -> None:
    log = Log()
    async with fake_batcher() as batcher:
        batcher.attach(lambda event: detach())
        detach = batcher.attach(log)
        await batcher.generate(PROMPT, max_tokens=1)
    assert log.events == []


async def test_without_handlers_no_event_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(**fields: object) -> None:
        raise AssertionError("an event for nobody")

    monkeypatch.setattr(pybatcher.calls.telemetry, "StepEvent", build)
    monkeypatch.setattr(pybatcher.serving.request_state, "RequestEvent", build)
    async with fake_batcher() as batcher:
        batcher.attach(Log())()
        assert await batcher.generate(PROMPT, max_tokens=3)
        assert batcher.health().ok


async def coroutine(event: TelemetryEvent) -> None:
    raise AssertionError("nobody awaits it")


@pytest.mark.parametrize("handler", [None, "print", coroutine])
def test_what_cannot_handle_events_is_refused(handler: object) -> None:
    with pytest.raises(ConfigError, match=r"handler is .*; it must be a function of one event"):
        fake_batcher().attach(handler)


async def test_a_handler_does_not_keep_a_dropped_batcher() -> None:
    engine, log = FakeEngine(), Log()
    batcher = fake_batcher(engine)
    batcher.attach(log)
    await batcher.start()
    await batcher.generate(PROMPT, max_tokens=2)
    dropped = weakref.ref(batcher)
    del batcher
    gc.collect()
    assert dropped() is None
    await until(lambda: engine.closed)


def test_a_blocking_batcher_tells_on_its_own_thread() -> None:
    log = Log()
    blocking = BlockingBatcher.over(fake_batcher())
    detach = blocking.attach(log)
    with blocking:
        assert blocking.model_name == "fake"
        blocking.generate(PROMPT, max_tokens=2)
        detach()
        blocking.generate(PROMPT, max_tokens=2)
    assert len(log.requests) == 1
    assert len(log.threads) == 1
    assert threading.get_ident() not in log.threads

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from itertools import count
from typing import Any

import pytest
from batcher_helpers import until
from telemetry_events import request, statistics, step

from pybatcher import ConnectionLostError, Health
from pybatcher.calls.telemetry import Handler
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.watch import live_feed
from pybatcher.http.watch.live_feed import LiveFeed, Watchers, counts_of, timeline_of
from pybatcher.sidecar.protocol.sidecar_statistics import SidecarStatistics


class Double:
    """A batcher that answers what a test has set, and says who listens."""

    def __init__(self) -> None:
        self.handlers: list[Handler] = []
        self.answer: Any = statistics(running=2)
        self.status: Any = "ready"

    def attach(self, handler: Handler) -> Callable[[], None]:
        self.handlers.append(handler)
        return lambda: self.handlers.remove(handler)

    def emit(self, event: Any) -> None:
        for handler in self.handlers:
            handler(event)

    async def health(self) -> Health:
        return Health(self.status, "as the test wants it")

    async def statistics(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "PERIOD", 0.0)
    monkeypatch.setattr(live_feed, "HISTORY_PERIOD", 0.0)
    monkeypatch.setattr(live_feed, "PATIENCE", 0.05)


@pytest.fixture
def double() -> Double:
    return Double()


@pytest.fixture
def feed(double: Double) -> LiveFeed:
    return LiveFeed("m", double, clock=lambda: 100.0)  # type: ignore[arg-type]


async def first(feed: LiveFeed, *events: Any, double: Double, **asked: Any) -> dict[str, Any]:
    """The frame after these events."""
    asked = {"namespace": None, "until": asyncio.Event(), **asked}
    async with aclosing(feed.frames(**asked)) as frames:
        await anext(frames)
        for event in events:
            double.emit(event)
        return await anext(frames)


async def test_a_frame_tells_counts_times_and_who_has_ended(feed: LiveFeed, double: Double) -> None:
    events = [step(99.0), request(99.5, 7, ttft=0.5, itl=(0.1, 0.3)), request(99.9, 8, ttft=0.1)]
    frame = await first(feed, *events, double=double)
    assert json.loads(json.dumps(frame)) == frame
    assert (frame["time"], frame["model"], frame["serial"]) == (100.0, "m", 2)
    assert frame["health"] == {"status": "ready", "reason": "as the test wants it"}
    assert frame["counts"]["running"] == 2
    assert frame["ttft"] == {"n": 2, "p50": 0.1, "p95": 0.5, "p99": 0.5}
    assert frame["queued"]["n"] == frame["total"]["n"] == 2
    assert frame["itl"]["p50"] == 0.1
    assert frame["step"]["decode_rows"] == 1
    assert [one["id"] for one in frame["ended"]] == [7, 8]


async def test_a_frame_has_advice_while_requests_wait(feed: LiveFeed, double: Double) -> None:
    double.answer = statistics(queued=2, running=4, max_running=4, max_rows=64)
    frame = await first(
        feed, step(99.0, decode_rows=4, prefill_rows=0, draft_rows=0), double=double
    )
    assert frame["advice"].endswith("all 4 places are taken; raise n_parallel")
    assert "4 of 64 rows" in frame["advice"]
    double.answer = statistics(running=4, max_running=4, max_rows=64)
    assert (await first(feed, step(99.0), double=double))["advice"] == ""


async def test_without_requests_there_are_no_times(feed: LiveFeed, double: Double) -> None:
    frame = await first(feed, double=double)
    assert (frame["ttft"], frame["itl"], frame["step"], frame["ended"]) == (None, None, None, [])


async def test_requests_of_other_namespaces_are_not_told(feed: LiveFeed, double: Double) -> None:
    events = [request(99.0, 1, namespace="mine"), request(99.0, 2, namespace="theirs")]
    frame = await first(feed, *events, double=double, namespace="mine")
    assert [one["id"] for one in frame["ended"]] == [1]
    assert "theirs" not in str(frame)
    assert "mine" not in str(frame)


async def test_who_comes_back_hears_what_has_ended_meanwhile(
    feed: LiveFeed, double: Double
) -> None:
    before = await first(feed, request(99.0, 1), double=double)
    double.emit(request(99.5, 2))
    until = asyncio.Event()
    async with aclosing(feed.frames(None, until, before["serial"])) as frames:
        assert [one["id"] for one in (await anext(frames))["ended"]] == [2]
        assert (await anext(frames))["ended"] == []
    async with aclosing(feed.frames(None, until)) as frames:
        frame = await anext(frames)
        assert [one["id"] for one in frame["ended"]] == [1, 2], "one that is new has seen none"
        assert "history" in frame
        assert "history" not in await anext(frames)


async def test_a_slow_watcher_hears_of_the_last_requests_only(
    feed: LiveFeed, double: Double
) -> None:
    events = [request(99.0, i) for i in range(1000)]
    frame = await first(feed, *events, double=double)
    assert [one["id"] for one in frame["ended"]] == list(range(1000 - 64, 1000))


async def test_it_keeps_what_happens_before_anybody_watches(double: Double) -> None:
    times = count(0.0, 0.25)
    feed = LiveFeed("m", double, clock=lambda: next(times))  # type: ignore[arg-type]
    feed.begin()
    feed.begin()
    assert len(double.handlers) == 1
    double.answer = statistics(steps=1)
    double.emit(step(1.0))
    await until(lambda: len(feed._history) >= 1)
    double.answer = statistics(steps=2)
    double.emit(step(2.0))
    await until(lambda: feed._history[-1]["counts"]["steps"] == 2)
    async with aclosing(feed.frames(None, asyncio.Event())) as frames:
        frame = await anext(frames)
    past = frame["history"]
    assert json.loads(json.dumps(frame)) == frame
    assert list(dict.fromkeys(one["counts"]["steps"] for one in past)) == [1, 2]
    assert all(set(one) == {"time", "counts", "ttft", "itl", "step"} for one in past)
    assert [one["time"] for one in past] == sorted({one["time"] for one in past})


async def test_what_is_kept_is_bounded_and_recording_rests(double: Double) -> None:
    feed = LiveFeed("m", double)  # type: ignore[arg-type]
    feed.begin()
    n_asked = 0
    ask = double.statistics

    async def counted() -> Any:
        nonlocal n_asked
        n_asked += 1
        return await ask()

    double.statistics = counted  # type: ignore[method-assign]
    for i in range(1000):
        double.emit(request(100.0, i, itl=(0.1,) * 500))
    assert len(feed._ended) == 64
    assert all(len(one.itl) <= 256 for one in feed._window.recent(1000))
    recording = feed._recording
    assert recording is not None
    await recording
    assert len(feed._history) == live_feed.HISTORY
    assert n_asked <= 2, "nobody is asked for counts that have not changed"
    double.emit(step(100.0))
    assert feed._recording not in (None, recording)
    double.status = "closed"
    await feed._recording


async def test_a_feed_that_is_dropped_is_freed(double: Double) -> None:
    feed = LiveFeed("m", double)  # type: ignore[arg-type]
    feed.begin()
    this = weakref.ref(feed)
    del feed
    assert this() is None
    double.emit(step(1.0))


@pytest.mark.parametrize("status", ["closing", "closed"])
async def test_it_ends_with_the_batcher(feed: LiveFeed, double: Double, status: str) -> None:
    double.status = status
    assert len([one async for one in feed.frames(None, asyncio.Event())]) == 1


async def test_it_ends_when_its_time_is_over_or_it_is_told(double: Double) -> None:
    times = count(0.0, 10.0)  # asked twice for each frame, and once before
    feed = LiveFeed("m", double, clock=lambda: next(times))  # type: ignore[arg-type]
    assert len([one async for one in feed.frames(None, asyncio.Event())]) == 2
    until = asyncio.Event()
    until.set()
    assert [one async for one in feed.frames(None, until)] == []


@pytest.mark.parametrize(
    ("answer", "status"), [(ConnectionLostError("it is not there"), "gone"), (None, "hung")]
)
async def test_a_sidecar_that_does_not_answer(
    feed: LiveFeed, double: Double, answer: Any, status: str
) -> None:
    double.answer = answer
    frame = await first(feed, double=double)
    assert (frame["counts"], frame["health"]["status"]) == (None, status)


def test_counts_of_workers_are_there_where_there_are_some() -> None:
    plain = counts_of(statistics(completed=5))
    assert (plain["completed"], "worker_restarts" in plain) == (5, False)
    known = {name: getattr(statistics(), name) for name in statistics().__dataclass_fields__}
    more: dict[str, Any] = {"replayed_requests": 0, "connections": 0, "in_flight": 0}
    found = counts_of(SidecarStatistics(**known, **more, worker_restarts=3, worker_pids=(12345,)))
    assert found["worker_restarts"] == 3
    assert "12345" not in str(found)


def test_a_timeline_has_sizes_and_times() -> None:
    itl = (0.1,) * 9 + (4.1,)  # a pause before the last token
    told = timeline_of(request(5.0, ttft=0.5, itl=itl, total=5.5, queued=0.2))
    assert (told["queued"], told["ttft"], told["total"], told["slowest"]) == (0.2, 0.5, 5.5, 4.1)
    assert sum(told["tokens"]) == len(itl)
    assert told["tokens"][-1] == 1
    assert sum(told["tokens"][12:-1]) == 0
    assert "namespace" not in told
    none = timeline_of(request(5.0, ttft=None, itl=()))
    assert (none["tokens"], none["itl"], none["slowest"]) == ([], None, None)


def test_no_more_may_watch_than_there_is_room_for() -> None:
    watchers = Watchers()
    with ExitStack() as watching:
        for _ in range(live_feed.MOST_WATCHERS):
            watching.enter_context(watchers.one_more())
        with pytest.raises(HttpError) as error:
            watchers.check()
        assert error.value.status == 429
        with pytest.raises(HttpError), watchers.one_more():
            pass
        assert watchers.n_watching == live_feed.MOST_WATCHERS
    assert watchers.n_watching == 0

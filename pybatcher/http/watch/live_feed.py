"""`LiveFeed`: the activity of a batcher as frames for the live view. No frame has any text.

    feed = LiveFeed(name, batcher)
    async for frame in feed.frames(namespace=None, until=ended): ...

The feed listens to the batcher from `begin` on, so that a client also gets what happened before.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from ...calls.any_batcher import AnyBatcher
from ...calls.rolling_window import RollingWindow, percentile
from ...calls.statistics import BatcherStatistics
from ...calls.telemetry import RequestEvent, TelemetryEvent
from ...errors import PybatcherError
from ..base.http_error import HttpError
from ..base.model_list import ModelList

__all__ = ["LiveFeed", "LiveFeeds", "Watchers", "counts_of", "timeline_of"]

PERIOD = 0.5  # seconds between frames
SPAN = 30.0  # seconds of one response, so that a server need not wait longer for its watchers
HISTORY_PERIOD = 1.0  # seconds between the recorded states
HISTORY = 120  # recorded states
PATIENCE = 5.0  # seconds that a sidecar has to answer

MOST_WATCHERS = 8  # watchers of an application

_MOST_ENDED = 64  # ended requests that are kept
_MOST_GAPS = 256  # gaps between tokens of one request that are kept for percentiles
_BINS = 48  # bins of a timeline
_PERCENTILES = (50, 95, 99)
_RECORDED = ("time", "counts", "ttft", "itl", "step")  # the entries of a frame that are kept
_COUNTS = (
    "queued",
    "queued_tokens",
    "running",
    "submitted",
    "completed",
    "cancelled",
    "expired",
    "failed",
    "rejected",
    "steps",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "proposed_tokens",
    "accepted_tokens",
    "preemptions",
    "recomputed_tokens",
    "replayed_tokens",
    "max_running",
    "max_rows",
    "restarts",
    "worker_restarts",
    "kv_total_blocks",
    "kv_free_blocks",
    "kv_cached_blocks",
)
"""The counts in a frame. Counts of workers are present only if there are workers."""


class Watchers:
    """The number of clients that watch an application. ended: is set to end their feeds."""

    def __init__(self) -> None:
        self.n_watching = 0
        self.ended = asyncio.Event()

    def send_away(self) -> None:
        """End the feeds of all watchers. They can connect again."""
        self.ended.set()
        self.ended = asyncio.Event()

    def check(self) -> None:
        """Raise HttpError (429) if there are as many watchers as allowed."""
        if self.n_watching >= MOST_WATCHERS:
            raise HttpError(
                429,
                f"{MOST_WATCHERS} watch already; more would take time from requests",
                type="rate_limit_error",
                code="too_many_watchers",
                headers={"retry-after": "5"},
            )

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count one watcher during the block. Raises HttpError (429)."""
        self.check()
        self.n_watching += 1
        try:
            yield
        finally:
            self.n_watching -= 1


class LiveFeed:
    """Reports the activity of one batcher to each watcher, twice a second.

    A frame has counts since the start, so that a missed frame loses nothing. A slow watcher gets
    fewer frames. The last ended requests and the states of the last two minutes are kept, a
    megabyte at most; the first frame of a new watcher has them. The feed does not keep the batcher
    alive: when the feed is dropped, its handler does nothing.
    """

    def __init__(
        self, name: str, batcher: AnyBatcher, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.batcher = batcher
        self._name = name
        self._clock = clock
        self._has_begun = False
        self._window = RollingWindow()
        self._ended: deque[tuple[int, str, dict[str, Any]]] = deque(maxlen=_MOST_ENDED)
        self._n_ended = 0
        self._history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self._recording: asyncio.Task[None] | None = None
        self._has_news = False

    def begin(self) -> None:
        """Listen to the batcher from now on. Later calls do nothing."""
        if self._has_begun:
            return
        self._has_begun = True
        this = weakref.ref(self)

        def take(event: TelemetryEvent) -> None:
            if (feed := this()) is not None:
                feed._take(event)

        self.batcher.attach(take)

    async def frames(
        self, namespace: str | None, until: asyncio.Event, after: int | None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yield frames until `until` is set, the batcher closes, or `SPAN` seconds have passed.

        namespace: only requests of this namespace are reported. None: requests of all namespaces.
        after: the "serial" of the watcher's last frame. None: it has had none, and its first frame
            has the "history" and the ended requests that are kept.
        """
        end = self._clock() + SPAN
        self.begin()
        more = {} if after is not None else {"history": list(self._history)}
        serial = after or 0
        while not until.is_set():
            frame = await self._frame(namespace, serial)
            serial = frame["serial"]
            yield {**frame, **more}
            more = {}
            is_over = frame["health"]["status"] in ("closing", "closed")
            if is_over or self._clock() >= end:
                return
            await _wait(until, PERIOD)

    def _take(self, event: TelemetryEvent) -> None:
        if isinstance(event, RequestEvent):
            self._n_ended += 1
            self._ended.append((self._n_ended, event.namespace, timeline_of(event)))
            if len(event.itl) > _MOST_GAPS:
                event = replace(event, itl=event.itl[-_MOST_GAPS:])
        self._window(event)
        self._has_news = True
        if self._recording is None:
            self._recording = asyncio.create_task(self._record(), name="pybatcher-history")

    async def _record(self) -> None:
        """Record a state each second until the batcher closes, or until nothing has happened for as
        long as states are kept.

        A second without an event has the counts of the one before, and nobody is asked for them.
        """
        try:
            n_idle, state = 0, await self._frame(None, self._n_ended)
            while n_idle < HISTORY and state["health"]["status"] not in ("closing", "closed"):
                self._history.append({name: state[name] for name in _RECORDED})
                await asyncio.sleep(HISTORY_PERIOD)
                if self._has_news:
                    self._has_news, n_idle = False, 0
                    state = await self._frame(None, self._n_ended)
                else:
                    n_idle += 1
                    now = self._clock()
                    state = {**state, "time": now, **self._times(now)}
        finally:
            self._recording = None

    async def _frame(self, namespace: str | None, after: int) -> dict[str, Any]:
        counts, statistics, health = None, None, {}
        try:
            async with asyncio.timeout(PATIENCE):
                found = await self.batcher.health()
                health = {"status": found.status, "reason": found.reason}
                statistics = await self.batcher.statistics()
                counts = counts_of(statistics)
        except TimeoutError:
            health = {"status": "hung", "reason": f"no answer within {PATIENCE:.0f} s"}
        except PybatcherError as error:
            health = {"status": "gone", "reason": str(error)}
        now, serial = self._clock(), self._n_ended
        times = self._times(now)
        step = times["step"] or {}
        rows = sum(step.get(f"{kind}_rows", 0.0) for kind in ("decode", "prefill", "draft"))
        ended = [
            timeline
            for number, own, timeline in self._ended
            if number > after and namespace in (None, own)
        ]
        return {
            "time": now,
            "serial": serial,
            "model": self._name,
            "health": health,
            "counts": counts,
            "advice": "" if statistics is None else statistics.advice(rows),
            **times,
            "ended": ended,
        }

    def _times(self, now: float) -> dict[str, Any]:
        """Return percentiles of the last minute, and the mean step of the last seconds."""
        ttft, itl = self._window.ttft(now), self._window.itl(now)
        recent = self._window.seconds(now, 3)
        steps = sum(second.steps for second in recent)
        step = {
            name: sum(getattr(second, name) for second in recent) / steps
            for name in ("seconds", "engine_seconds", "decode_rows", "prefill_rows", "draft_rows")
            if steps
        }
        queued, total = self._window.queued(now), self._window.total(now)
        return {
            "ttft": _percentiles(ttft),
            "itl": _percentiles(itl),
            "queued": _percentiles(queued),
            "total": _percentiles(total),
            "step": step or None,
        }


class LiveFeeds:
    """The live feeds of an application's models, and the clients that read them."""

    def __init__(self, models: ModelList) -> None:
        self.watchers = Watchers()
        self._models = models
        self._feeds: dict[str, LiveFeed] = {}
        self._has_begun = False

    def begin(self) -> None:
        """Let the feeds of all models listen from now on. Later calls do nothing."""
        if not self._has_begun:
            with suppress(PybatcherError):  # a batcher was not started yet
                for name, batcher in self._models.by_name.items():
                    self.of(name, batcher).begin()
                self._has_begun = True

    def of(self, name: str, batcher: AnyBatcher) -> LiveFeed:
        """Return the feed of a model. It is a new one if the name serves another batcher now."""
        feed = self._feeds.get(name)
        if feed is None or feed.batcher is not batcher:
            feed = self._feeds[name] = LiveFeed(name, batcher)
        return feed


def counts_of(statistics: BatcherStatistics) -> dict[str, int]:
    """Return the counts for a frame."""
    return {name: getattr(statistics, name) for name in _COUNTS if hasattr(statistics, name)}


def timeline_of(event: RequestEvent) -> dict[str, Any]:
    """Return the sizes and times of an ended request, in seconds since its submission.

    "tokens" has the number of tokens in each bin of the time from the first token to the last.
    """
    return {
        "id": event.request_id,
        "when": event.when,
        "reason": event.finish_reason,
        "prompt": event.prompt_tokens,
        "cached": event.cached_tokens,
        "generated": event.generated_tokens,
        "queued": event.queued,
        "ttft": event.ttft,
        "total": event.total,
        "itl": percentile(event.itl, 50) if event.itl else None,
        "slowest": max(event.itl, default=None),
        "tokens": _in_bins(event.itl),
        "preemptions": event.preemptions,
    }


def _in_bins(gaps: Sequence[float]) -> list[int]:
    """Return the number of tokens in each of equal bins of the total time."""
    whole, at = sum(gaps), 0.0
    if not whole:
        return []
    bins = [0] * _BINS
    for gap in gaps:
        at += gap
        bins[min(int(at / whole * _BINS), _BINS - 1)] += 1
    return bins


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    values = sorted(values)  # once: `percentile` sorts, too
    return {
        "n": len(values),
        **{f"p{percent}": percentile(values, percent) for percent in _PERCENTILES},
    }


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or after `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()

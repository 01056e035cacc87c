"""`LiveFeed`: the activity of a batcher as frames for the live view. No frame has any text.

    feed = LiveFeed(name, batcher)
    async for frame in feed.frames(namespace=None, until=ended): ...

The feed listens to the batcher only while a client reads frames.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
LINGER = 5.0  # seconds of listening after the last watcher has left
PATIENCE = 5.0  # seconds that a sidecar has to answer

MOST_WATCHERS = 8  # watchers of an application

_MOST_ENDED = 64  # ended requests between two frames
_BINS = 48  # bins of a timeline
_PERCENTILES = (50, 95, 99)
_COUNTS = (
    "queued",
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
    fewer frames, and only the last ended requests are stored for it. The feed listens from the
    first watcher until some seconds after the last one, because each watcher is disconnected after
    `SPAN` and connects again.
    """

    def __init__(
        self, name: str, batcher: AnyBatcher, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.batcher = batcher
        self._name = name
        self._clock = clock
        self._n_watching = 0
        self._detach: Callable[[], None] | None = None
        self._window = RollingWindow()
        self._ended: deque[tuple[int, RequestEvent]] = deque(maxlen=_MOST_ENDED)
        self._n_ended = 0

    @property
    def is_listening(self) -> bool:
        """True while the feed listens to the batcher's events."""
        return self._detach is not None

    async def frames(
        self, namespace: str | None, until: asyncio.Event, after: int | None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yield frames until `until` is set, the batcher closes, or `SPAN` seconds have passed.

        namespace: only requests of this namespace are reported. None: requests of all namespaces.
        after: the "serial" of the watcher's last frame. None: it has had none.
        """
        end = self._clock() + SPAN
        self._come()
        try:
            serial = self._n_ended if after is None else after
            while not until.is_set():
                frame = await self._frame(namespace, serial)
                serial = frame["serial"]
                yield frame
                is_over = frame["health"]["status"] in ("closing", "closed")
                if is_over or self._clock() >= end:
                    return
                await _wait(until, PERIOD)
        finally:
            self._go()

    def _come(self) -> None:
        self._n_watching += 1
        if self._detach is None:
            self._window = RollingWindow()
            self._ended.clear()
            self._detach = self.batcher.attach(self._take)

    def _go(self) -> None:
        self._n_watching -= 1
        if self._n_watching == 0:
            asyncio.get_running_loop().call_later(LINGER, self._detach_if_left)

    def _detach_if_left(self) -> None:
        if self._n_watching == 0 and self._detach is not None:
            self._detach()
            self._detach = None

    def _take(self, event: TelemetryEvent) -> None:
        self._window(event)
        if isinstance(event, RequestEvent):
            self._n_ended += 1
            self._ended.append((self._n_ended, event))

    async def _frame(self, namespace: str | None, after: int) -> dict[str, Any]:
        counts, health = None, {}
        try:
            async with asyncio.timeout(PATIENCE):
                found = await self.batcher.health()
                health = {"status": found.status, "reason": found.reason}
                counts = counts_of(await self.batcher.statistics())
        except TimeoutError:
            health = {"status": "hung", "reason": f"no answer within {PATIENCE:.0f} s"}
        except PybatcherError as error:
            health = {"status": "gone", "reason": str(error)}
        now, serial = self._clock(), self._n_ended
        ended = [event for number, event in self._ended if number > after]
        return {
            "time": now,
            "serial": serial,
            "model": self._name,
            "health": health,
            "counts": counts,
            **self._times(now),
            "ended": [timeline_of(e) for e in ended if namespace in (None, e.namespace)],
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
        return {"ttft": _percentiles(ttft), "itl": _percentiles(itl), "step": step or None}


class LiveFeeds:
    """The live feeds of an application's models, and the clients that read them."""

    def __init__(self, models: ModelList) -> None:
        self.watchers = Watchers()
        self._feeds: dict[str, LiveFeed] = {}

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
    return {f"p{percent}": percentile(values, percent) for percent in _PERCENTILES}


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or after `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()

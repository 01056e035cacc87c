"""Output of `pybatcher top`: a frame for a terminal, a line for other outputs.

It depends on no batcher and no clock: events, statistics and the time are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..calls.rolling_window import RollingWindow, Second, percentile
from ..calls.statistics import BatcherStatistics, Health
from ..calls.telemetry import RequestEvent, TelemetryEvent
from .console import visible

__all__ = ["PERCENTILES", "Times", "TopView", "sparkline"]

RATE_SPAN = 3.0  # seconds over which rates are averaged
LABEL = 9  # columns of a line's label
FIGURE = 22  # columns right of a sparkline
PERCENTILES = (50, 95, 99)
LINES_ABOVE_REQUESTS = 19
BARS = "▁▂▃▄▅▆▇█"


Times = dict[str, tuple[tuple[float, ...], int]]
"""For each kind of time, its `PERCENTILES` in seconds, and the number of values."""


class TopView:
    """A view of a running batcher, made from its events (`take`) and statistics (`update`).

    All times are seconds of the batcher's clock.
    """

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.clear()

    def clear(self) -> None:
        """Forget all events and statistics, as at the beginning."""
        self._minute = RollingWindow()
        self._updates: deque[tuple[float, BatcherStatistics]] = deque()
        self._health = Health("new", "")
        self._began: float | None = None
        self._told: Times | None = None

    def rename(self, model_name: str) -> None:
        """Show another name of the model."""
        self._model_name = model_name

    def take(self, event: TelemetryEvent) -> None:
        """Record an event; a handler for `attach`."""
        self._minute(event)

    def update(
        self,
        statistics: BatcherStatistics,
        health: Health,
        now: float,
        times: Times | None = None,
    ) -> None:
        """Record the current state. Call it several times a second; `render` shows the last.

        times: percentiles of the last minute; None: those of the recorded events.
        """
        self._told = times
        if self._began is None:
            self._began = now
        self._health = health
        self._updates.append((now, statistics))
        while self._updates[0][0] < now - RATE_SPAN:
            self._updates.popleft()

    # -- figures ----------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._updates[-1][0]

    @property
    def _counts(self) -> BatcherStatistics:
        return self._updates[-1][1]

    def _rate(self, count: Callable[[BatcherStatistics], int]) -> float:
        """Return a counter's growth per second over the last `RATE_SPAN` seconds."""
        (began, before), (now, counts) = self._updates[0], self._updates[-1]
        return (count(counts) - count(before)) / (now - began) if now > began else 0.0

    def _step(self, of: Callable[[Second], float]) -> float:
        """Return the mean of a step's property over the last `RATE_SPAN` seconds."""
        seconds = self._minute.seconds(self._now, int(RATE_SPAN))
        steps = sum(second.steps for second in seconds)
        return sum(map(of, seconds)) / steps if steps else 0.0

    def _kv(self) -> tuple[float, float]:
        """Return the shares of KV blocks in use and cached, 0 to 1."""
        counts = self._counts
        cached = counts.kv_cached_blocks / counts.kv_total_blocks
        return 1 - cached - counts.kv_free_blocks / counts.kv_total_blocks, cached

    def _advice(self) -> str:
        """Return the advice for a queue that has not been empty for `RATE_SPAN` seconds."""
        if not all(counts.queued for _, counts in self._updates):
            return ""
        return self._counts.advice(sum(self._step(of) for of in _KINDS.values()))

    def _times(self) -> Times:
        if self._told is not None:
            return self._told
        minute, now = self._minute, self._now
        values = {
            "TTFT": minute.ttft(now),
            "ITL": minute.itl(now),
            "queued": minute.queued(now),
            "total": minute.total(now),
        }
        return {
            name: (tuple(percentile(some, percent) for percent in PERCENTILES), len(some))
            for name, some in values.items()
        }

    # -- as a line --------------------------------------------------------------------------

    def line(self) -> str:
        """Return the view as one line, percentiles as p50/p95/p99."""
        counts, times = self._counts, self._times()
        rows = [f"{self._step(of):.2f} {kind}" for kind, of in _KINDS.items()]
        return "  ".join(
            [
                _duration(self._now - (self._began or 0.0)),
                " ".join(visible(self._health.status).split()),
                f"{self._rate(lambda c: c.generated_tokens):,.0f} tok/s",
                f"{self._rate(lambda c: c.steps):,.0f} steps/s",
                "rows " + " ".join(rows),
                f"{counts.running} running {counts.queued} waiting",
                f"KV {self._kv()[0]:.0%}",
                *(f"{name} {_percentiles(times[name][0])}" for name in ("TTFT", "ITL")),
                f"{_ended(counts)} ended {counts.failed} failed",
                *([advice] if (advice := self._advice()) else []),
            ]
        )

    # -- as a frame -------------------------------------------------------------------------

    def render(self, width: int, height: int) -> RenderableType:
        """Return the frame for a terminal of `width` columns and `height` lines."""
        n_requests = height - LINES_ABOVE_REQUESTS - 2  # minus a blank line and the table's head
        advice = [_labelled("advice", (advice, "yellow"))] if (advice := self._advice()) else []
        n_requests -= len(advice)
        parts: list[RenderableType] = [
            self._title(),
            "",
            *self._throughput(),
            "",
            *self._sparklines(max(width - LABEL - FIGURE, 1)),
            self._kv_line(max(width - LABEL - FIGURE, 1)),
            "",
            self._percentile_table(),
            "",
            *self._totals(),
            *advice,
        ]
        if n_requests > 0:
            parts += ["", _request_table(self._minute.recent(n_requests))]
        for part in parts:
            if isinstance(part, Text):
                part.truncate(width)
        return Group(*parts)

    def _title(self) -> Text:
        health = self._health
        state = health.status if health.ok else f"{health.status}: {health.reason}"
        return Text.assemble(
            ("pybatcher top", "bold"),
            f"  {visible(self._model_name)}  ",
            (visible(state), "green" if health.ok else "bold red"),
            f"  {_duration(self._now - (self._began or 0.0))}",
        )

    def _throughput(self) -> list[Text]:
        step, engine = self._step(lambda s: s.seconds), self._step(lambda s: s.engine_seconds)
        computed = self._rate(lambda c: c.prompt_tokens - c.cached_tokens)
        return [
            _labelled(
                "tokens",
                (f"{self._rate(lambda c: c.generated_tokens):,.0f}", "bold"),
                f"/s generated, {computed:,.0f}/s of prompts computed, "
                f"{self._rate(lambda c: c.cached_tokens):,.0f}/s taken from the cache",
            ),
            _labelled(
                "steps",
                f"{self._rate(lambda c: c.steps):,.0f}/s of {_milliseconds(step)}, "
                f"{engine / step if step else 0.0:.0%} of it in the engine",
            ),
        ]

    def _sparklines(self, width: int) -> list[Text]:
        """Return sparklines of rows per step by kind, and of the queue, by second."""
        seconds = self._minute.seconds(self._now)[-width:]
        lines = [
            _labelled(
                kind,
                (sparkline([of(s) / s.steps if s.steps else 0.0 for s in seconds]), _STYLES[kind]),
                f" {self._step(of):.2f} rows a step",
            )
            for kind, of in _KINDS.items()
        ]
        waiting = sparkline([float(second.most_queued) for second in seconds])
        counts = self._counts
        figure = f" {counts.queued} ({counts.queued_tokens:,} tokens)"
        lines.append(_labelled("waiting", (waiting, "yellow"), figure))
        return lines

    def _kv_line(self, width: int) -> Text:
        """Return a bar of the KV blocks in use, cached and free."""
        in_use, cached = self._kv()
        width = min(width, len(self._minute.seconds(self._now)))
        n_used = round(in_use * width)
        n_cached = min(round(cached * width), width - n_used)
        return _labelled(
            "KV",
            ("█" * n_used, "cyan"),
            ("▒" * n_cached, "dim"),
            ("░" * (width - n_used - n_cached), "dim"),
            f" {in_use:.0%} used {cached:.0%} cached",
        )

    def _percentile_table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(min_width=LABEL - 2)
        for _ in range(len(PERCENTILES) + 1):
            table.add_column(justify="right", no_wrap=True)
        table.add_row("", *(Text(f"p{percent}", "dim") for percent in PERCENTILES), "")
        for name, (values, n) in self._times().items():
            cells = map(_milliseconds, values)
            table.add_row(Text(name, "dim"), *cells, Text(f"of {n:,}", "dim"))
        return table

    def _totals(self) -> list[Text]:
        c = self._counts
        accepted = c.accepted_tokens / c.proposed_tokens if c.proposed_tokens else 0.0
        return [
            _labelled(
                "requests",
                f"{c.running} run, {c.completed:,} completed, {c.cancelled:,} cancelled, "
                f"{c.expired:,} expired, ",
                (f"{c.failed:,} failed", "red" if c.failed else ""),
                f", {c.rejected:,} rejected",
            ),
            _labelled(
                "besides",
                f"{c.preemptions:,} preemptions, {c.recomputed_tokens:,} tokens recomputed, "
                f"{accepted:.0%} of drafts accepted, ",
                (f"{c.restarts:,} restarts", "red" if c.restarts else ""),
            ),
        ]


_KINDS: dict[str, Callable[[Second], int]] = {
    "decode": lambda second: second.decode_rows,
    "prefill": lambda second: second.prefill_rows,
    "draft": lambda second: second.draft_rows,
}
_STYLES = {"decode": "green", "prefill": "blue", "draft": "magenta"}


def sparkline(values: Sequence[float]) -> str:
    """Return one bar character per value, the highest at full height; a space for zero."""
    most = max(values, default=0.0)
    return "".join(
        BARS[min(int(value / most * len(BARS)), len(BARS) - 1)] if value > 0 else " "
        for value in values
    )


def _request_table(events: Sequence[RequestEvent]) -> Table:
    table = Table.grid(padding=(0, 2))
    names = ("request", "ended", "prompt", "cached", "tokens", "queued", "TTFT", "TPOT", "total")
    for name in names:
        table.add_column(justify="left" if name == "ended" else "right", no_wrap=True)
    table.add_row(*(Text(name, "dim") for name in names))
    for event in events:
        tpot = sum(event.itl) / len(event.itl) if event.itl else None
        table.add_row(
            str(event.request_id),
            Text(visible(event.finish_reason), _style_of(event.finish_reason)),
            f"{event.prompt_tokens:,}",
            f"{event.cached_tokens:,}",
            f"{event.generated_tokens:,}",
            *map(_milliseconds, (event.queued, event.ttft, tpot, event.total)),
        )
    return table


def _style_of(finish_reason: str) -> str:
    if finish_reason in ("stop", "length", "scored", "embedded"):
        return "green"
    return "yellow" if finish_reason in ("cancelled", "deadline") else "red"


def _labelled(label: str, *parts: str | tuple[str, str]) -> Text:
    return Text.assemble((label.ljust(LABEL), "dim"), *parts)


def _ended(counts: BatcherStatistics) -> int:
    return counts.completed + counts.cancelled + counts.expired + counts.failed


def _percentiles(values: Sequence[float]) -> str:
    return "/".join(f"{1000 * value:,.1f}" for value in values) + " ms"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.1f} ms"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"

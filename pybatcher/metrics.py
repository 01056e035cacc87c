"""`Metrics`: a batcher's figures for Prometheus, under vLLM's names where vLLM has them.

    metrics = Metrics(batcher)
    Response(metrics.exposition(), media_type=metrics.content_type)    # GET /metrics

For a sidecar, through its `Client`, the figures must be fetched first:

    metrics = Metrics(client)
    await metrics.refresh()      # then as above

Needs prometheus-client: `pip install 'pybatcher-engine[metrics]'`. Its default registry is not
    changed, and no port is opened.

A new metric is one entry of `_METRICS` (for sidecars only: `_OF_A_SIDECAR`), at the end of this
    file; the metrics in `_OF_VLLM` are also exported under vLLM's own name. Histograms have the
    times of requests that have ended; all other figures are as of the scrape.
"""

from __future__ import annotations

import asyncio
import inspect
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, TypeVar

from .calls.statistics import BatcherStatistics, Health
from .calls.telemetry import Handler, RequestEvent, StepEvent, TelemetryEvent, check_attachable
from .errors import ConfigError, PybatcherError
from .errors.distribution import install_extra

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
except ImportError as error:
    raise ImportError(
        f"pybatcher.metrics needs prometheus-client ({error}); {install_extra('metrics')}"
    ) from error

__all__ = ["Metrics"]

PREFIX = "pybatcher:"
VLLM = "vllm:"
MODEL = "model_name"

# Bounds in seconds. A step of the smallest model takes less than half a millisecond; a prompt of
# thousands of tokens in a large model takes a minute.
_OF_A_WAIT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120)
_OF_A_STEP = (0.0001, 0.00025, 0.0005, *_OF_A_WAIT[:-3])  # up to 10 s
_OF_A_TOKEN = _OF_A_STEP
_OF_A_REQUEST = (*_OF_A_WAIT, 300, 600, 1800)
_OF_TOKENS = tuple(2**i for i in range(18))


_REFRESH_TIMEOUT = 5.0
"""Seconds that a sidecar has to answer. A Prometheus server waits 10 s for a scrape by default."""
_DESCRIBE_TIMEOUT = 0.5  # for a worker, to report the size of its KV blocks


class ObservedElsewhere(Protocol):
    """A batcher whose statistics must be fetched: a `Client`."""

    @property
    def model_name(self) -> str:
        """The value of the label that every series has."""

    async def statistics(self) -> BatcherStatistics:
        """Fetch the counts since the start."""

    def attach(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event from now on. Return a function that detaches it."""


class Observed(Protocol):
    """A batcher whose statistics are available at once: a `Batcher` or a blocking one."""

    @property
    def model_name(self) -> str:
        """The value of the label that every series has."""

    def statistics(self) -> BatcherStatistics:
        """Return the counts since the start."""

    def health(self) -> Health:
        """Return the health; its status tells whether the batcher was closed."""

    def attach(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event from now on. Return a function that detaches it."""


class Metrics:
    """The figures of one batcher or sidecar, in a registry of their own, or in a given one.

    batcher: a `Batcher` or `BlockingBatcher`; for a sidecar, a `Client` or `BlockingClient`, with
        the figures of all its clients. The figures of a `Client` are as of the last `refresh`, to
        be awaited on its event loop before each scrape; those of a `BlockingClient` are fetched by
        the scrape. Events while there is no connection are not counted.

    Figures made of events (histograms, `batch_rows`, `request_success`) count from the construction
    of the Metrics, which may be before the batcher's start; the others are the batcher's own
    counts. There are no samples before the start, nor after the batcher was closed or
    garbage-collected: only a weak reference to it is held. May be scraped from any thread.

    Raises ConfigError if the registry has the figures of another batcher, and for an object that is
    no batcher.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(
        self, batcher: Observed | ObservedElsewhere, registry: CollectorRegistry | None = None
    ) -> None:
        check_attachable(batcher)
        self._is_elsewhere = inspect.iscoroutinefunction(batcher.statistics)
        self._fetched: _Seen = None
        self._kv_block_size: int | None = None
        # A weak reference: the batcher's task keeps its handlers, and a handler that referred to
        # the batcher would keep it from closing itself when it is dropped.
        self._batcher = weakref.ref(batcher)
        self._counts = {m: Counter(dict.fromkeys(m.values, 0)) for m in _of_kind(_Count)}
        self._histograms = {m: _Histogram(m.bounds) for m in _of_kind(_Distribution)}
        self.registry = CollectorRegistry() if registry is None else registry
        try:
            self.registry.register(self)
        except ValueError as error:
            raise ConfigError(
                "registry has the figures of another batcher; give each one of its own, or None"
            ) from error
        batcher.attach(self._take)

    async def refresh(self, timeout: float = _REFRESH_TIMEOUT) -> None:  # noqa: ASYNC109
        """Fetch the figures of a `Client`, and the size of a KV block.

        timeout: seconds that the sidecar has to answer.
        Raises no error if there is no sidecar or no answer: then the scrape has no samples.
        """
        batcher: Any = self._batcher()
        if batcher is None:
            return
        if self._is_elsewhere:
            try:
                async with asyncio.timeout(timeout):
                    counts = await batcher.statistics()
                self._fetched = (batcher.model_name, counts)
            except (PybatcherError, TimeoutError):
                self._fetched = None
        if inspect.iscoroutinefunction(describe := getattr(batcher, "model_info", None)):
            with suppress(PybatcherError, TimeoutError):  # unchanged between two workers
                async with asyncio.timeout(min(timeout, _DESCRIBE_TIMEOUT)):
                    self._kv_block_size = (await describe()).kv_block_size

    def exposition(self) -> bytes:
        """Return the whole registry in Prometheus' text format, as the body of an HTTP response."""
        text: bytes = generate_latest(self.registry)
        return text

    # -- for the registry -------------------------------------------------------------------

    def describe(self) -> Iterator[Any]:
        """Yield the metric families with current figures; a `Client` has those of the last
        `refresh`.
        """
        return self._families(None)

    def collect(self) -> Iterator[Any]:
        """Yield the metric families as of now; of a `Client` as of the last `refresh`."""
        batcher: Any = self._batcher()
        if self._is_elsewhere:
            return self._families(None if batcher is None else self._fetched)
        try:
            if batcher is None or batcher.health().status == "closed":
                return self._families(None)
            return self._families((batcher.model_name, batcher.statistics()))
        except PybatcherError:  # not started yet, or a sidecar that has ended
            return self._families(None)

    def _families(self, seen: _Seen) -> Iterator[Any]:
        is_sidecar = seen is not None and hasattr(seen[1], "worker_pids")
        for metric in _METRICS + _OF_A_SIDECAR if is_sidecar else _METRICS:
            yield self._family(PREFIX + metric.name, metric, seen)
        for metric in _METRICS:
            if metric.name in _OF_VLLM:
                yield self._family(VLLM + metric.name, metric, seen)
        yield self._cache_config(seen)

    def _family(self, name: str, metric: _Metric, seen: _Seen) -> Any:
        if isinstance(metric, _Figure):
            family = metric.family(name, metric.help, labels=[MODEL])
            if seen is not None:
                family.add_metric([seen[0]], metric.value(seen[1]))
        elif isinstance(metric, _Count):
            family = CounterMetricFamily(name, metric.help, labels=[MODEL, metric.label])
            if seen is not None:
                # A copy, since the loop's thread may add to the counts at the same time.
                for value, count in list(self._counts[metric].items()):
                    family.add_metric([seen[0], value], count)
        else:
            family = HistogramMetricFamily(name, metric.help, labels=[MODEL])
            if seen is not None:
                family.add_metric([seen[0]], *self._histograms[metric].cumulative())
        return family

    def _cache_config(self, seen: _Seen) -> Any:
        """Return the shape of the KV cache as labels; without a sample before a `refresh`."""
        labels = [MODEL, "block_size", "num_gpu_blocks", "enable_prefix_caching"]
        family = _GAUGE(f"{VLLM}cache_config_info", "The KV cache, as labels.", labels=labels)
        if seen is not None and self._kv_block_size is not None:
            shape = [str(self._kv_block_size), str(seen[1].kv_total_blocks), "True"]
            family.add_metric([seen[0], *shape], 1.0)
        return family

    # -- on the loop's thread ---------------------------------------------------------------

    def _take(self, event: TelemetryEvent) -> None:
        for counted, counts in self._counts.items():
            if isinstance(event, counted.event):
                for value, count in counted.take(event):
                    counts[value] += count
        for distributed, histogram in self._histograms.items():
            if isinstance(event, distributed.event):
                histogram.add(*distributed.take(event))


class _Histogram:
    """Counts of values by upper bounds.

    The class of prometheus-client takes a lock and a search for each value, too slow on the event
    loop for a request with thousands of gaps between tokens. When read from another thread, the sum
    may have some values more or less than the counts.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, *values: float) -> None:
        bounds, counts = self._bounds, self._counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self._sum += sum(values)

    def cumulative(self) -> tuple[list[tuple[str, int]], float]:
        """Return the number of values up to each bound, by the bound's name, and the sum of all."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, accumulate(list(self._counts)), strict=True)), self._sum


# -- the table of metrics -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure of the batcher's statistics. value: computes it from them at a scrape."""

    family: type[Any]
    name: str
    help: str
    value: Callable[[Any], float]


@dataclass(frozen=True, slots=True)
class _Count:
    """A counter of events, by the value of a label.

    values: the label's values that are shown from the start, at 0.
    take: returns the counts that an event adds, by value.
    """

    name: str
    help: str
    label: str
    values: tuple[str, ...]
    event: type[TelemetryEvent]
    take: Callable[[Any], Sequence[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class _Distribution:
    """A histogram. take: returns the values that an event adds."""

    name: str
    help: str
    bounds: tuple[float, ...]
    event: type[TelemetryEvent]
    take: Callable[[Any], Sequence[float]]


_Seen = tuple[str, BatcherStatistics] | None
"""The model's name and the counts; None: there are no samples."""

_Metric = _Figure | _Count | _Distribution
_M = TypeVar("_M", bound=_Metric)


def _of_kind(kind: type[_M]) -> list[_M]:
    return [metric for metric in _METRICS if isinstance(metric, kind)]


def _kv_usage(counts: BatcherStatistics) -> float:
    """Return the share of KV in use; 0 without KV, as in a sidecar between two workers."""
    free = counts.kv_free_blocks + counts.kv_cached_blocks
    return 1 - free / counts.kv_total_blocks if counts.kv_total_blocks else 0.0


def _rows(event: StepEvent) -> tuple[tuple[str, int], ...]:
    return (
        ("decode", event.decode_rows),
        ("prefill", event.prefill_rows),
        ("draft", event.draft_rows),
    )


def _mean_gap(event: RequestEvent) -> tuple[float, ...]:
    return (sum(event.itl) / len(event.itl),) if event.itl else ()


_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily
_METRICS: tuple[_Metric, ...] = (
    _Figure(_GAUGE, "num_requests_running", "Requests that run.", lambda c: c.running),
    _Figure(_GAUGE, "num_requests_waiting", "Requests that wait.", lambda c: c.queued),
    _Figure(_GAUGE, "kv_cache_usage_perc", "KV blocks in use; 1 is all of them.", _kv_usage),
    _Figure(_COUNTER, "num_requests_rejected", "Requests refused: queue full, or too long.",
            lambda c: c.rejected),
    _Figure(_COUNTER, "prompt_tokens", "Prompt tokens of admitted requests.",
            lambda c: c.prompt_tokens),
    _Figure(_COUNTER, "generation_tokens", "Generated tokens.", lambda c: c.generated_tokens),
    _Figure(_COUNTER, "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.",
            lambda c: c.prompt_tokens),
    _Figure(_COUNTER, "prefix_cache_hits", "Prompt tokens taken from KV that was there.",
            lambda c: c.cached_tokens),
    _Figure(_COUNTER, "image_tokens", "Prompt tokens that stand for images.",
            lambda c: c.image_tokens),
    _Figure(_COUNTER, "num_preemptions", "Times a request gave its KV up to others.",
            lambda c: c.preemptions),
    _Figure(_COUNTER, "recomputed_tokens", "Tokens computed again after preemptions.",
            lambda c: c.recomputed_tokens),
    _Figure(_COUNTER, "engine_restarts", "Times the engine was restarted after a failure.",
            lambda c: c.restarts),
    _Figure(_COUNTER, "spec_decode_num_draft_tokens", "Draft tokens that had rows.",
            lambda c: c.proposed_tokens),
    _Figure(_COUNTER, "spec_decode_num_accepted_tokens", "Draft tokens that were right.",
            lambda c: c.accepted_tokens),
    _Count("batch_rows", "Rows of forward passes, by their kind.", "kind",
           ("decode", "prefill", "draft"), StepEvent, _rows),
    _Count("request_success",
           "Requests that ended, by how: stop, length, scored, embedded, deadline, cancelled, or "
           "an error.",
           "finished_reason", ("stop", "length", "deadline", "cancelled"), RequestEvent,
           lambda e: ((e.finish_reason, 1),)),
    _Distribution("time_to_first_token_seconds", "Submit to first token.", _OF_A_WAIT,
                  RequestEvent, lambda e: () if e.ttft is None else (e.ttft,)),
    _Distribution("inter_token_latency_seconds", "Gaps between neighbouring tokens.", _OF_A_TOKEN,
                  RequestEvent, lambda e: e.itl),
    _Distribution("request_time_per_output_token_seconds", "Mean gap of a request's tokens.",
                  _OF_A_TOKEN, RequestEvent, _mean_gap),
    _Distribution("e2e_request_latency_seconds", "Submit to the end, whatever it was.",
                  _OF_A_REQUEST, RequestEvent, lambda e: (e.total,)),
    _Distribution("request_queue_time_seconds", "Submit to admission, or to the end.", _OF_A_WAIT,
                  RequestEvent, lambda e: (e.queued,)),
    _Distribution("request_prefill_time_seconds", "Admission to first token.", _OF_A_REQUEST,
                  RequestEvent, lambda e: () if e.ttft is None else (e.ttft - e.queued,)),
    _Distribution("request_decode_time_seconds", "First token to last token.", _OF_A_REQUEST,
                  RequestEvent, lambda e: () if e.ttft is None else (sum(e.itl),)),
    _Distribution("request_prompt_tokens", "Prompt tokens of a request.", _OF_TOKENS,
                  RequestEvent, lambda e: (e.prompt_tokens,)),
    _Distribution("request_generation_tokens", "Generated tokens of a request.", _OF_TOKENS,
                  RequestEvent, lambda e: (e.generated_tokens,)),
    _Distribution("step_seconds", "A whole step: planning, engine, delivery.", _OF_A_STEP,
                  StepEvent, lambda e: (e.seconds,)),
    _Distribution("step_engine_seconds", "The engine's part of a step.", _OF_A_STEP,
                  StepEvent, lambda e: (e.engine_seconds,)),
)  # fmt: skip

_OF_VLLM = frozenset((
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions",
    "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits",
    "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
    "request_time_per_output_token_seconds", "request_queue_time_seconds", "request_success",
    "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
    "request_generation_tokens",
))  # fmt: skip
"""Metrics with the same meaning as vLLM's metrics of the same name."""

_OF_A_SIDECAR: tuple[_Metric, ...] = (
    _Figure(_COUNTER, "worker_restarts", "Workers that ended and were followed by another.",
            lambda c: c.worker_restarts),
    _Figure(_COUNTER, "replayed_requests", "Calls that were sent to a worker again.",
            lambda c: c.replayed_requests),
    _Figure(_GAUGE, "num_connections", "Clients that are connected.", lambda c: c.connections),
    _Figure(_GAUGE, "num_calls_in_flight", "Calls of all clients without an end.",
            lambda c: c.in_flight),
    _Figure(_GAUGE, "num_workers", "Worker processes: one, or two while one is drained.",
            lambda c: len(c.worker_pids)),
)  # fmt: skip

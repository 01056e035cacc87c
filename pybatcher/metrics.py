"""`Metrics`: a batcher's figures for Prometheus, by the names that vLLM has for them.

    metrics = Metrics(batcher)
    Response(metrics.exposition(), media_type=metrics.content_type)    # GET /metrics

Needs prometheus-client: `pip install 'pybatcher[metrics]'`. Nothing is put into its default
registry, and no port is opened.

A histogram has a request's times from the moment it ends; all else is as of the scrape.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from .calls.statistics import BatcherStatistics, Health
from .calls.telemetry import Handler, StepEvent, TelemetryEvent
from .errors import ConfigError, PybatcherError

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
except ImportError as error:
    raise ImportError(
        f"pybatcher.metrics needs prometheus-client ({error}); pip install 'pybatcher[metrics]'"
    ) from error

__all__ = ["Metrics"]

PREFIX = "pybatcher:"
MODEL = "model_name"

# Bounds in seconds. A step of the smallest model takes half a millisecond on a CPU, a prompt of
# thousands of tokens of a large one a minute.
_OF_A_STEP = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_OF_A_TOKEN = _OF_A_STEP
_OF_A_WAIT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120)
_OF_A_REQUEST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600, 1800)
_OF_TOKENS = tuple(2**i for i in range(18))


class Observed(Protocol):
    """Whose figures they are: a `Batcher`, a `BlockingBatcher`."""

    @property
    def model_name(self) -> str:
        """The value of the label that every series has."""

    def statistics(self) -> BatcherStatistics:
        """Counts since the start."""

    def health(self) -> Health:
        """Whether it was closed."""

    def attach(self, handler: Handler) -> Callable[[], None]:
        """Have `handler` called with every event."""


class Metrics:
    """The figures of one batcher, in a registry of their own, or in the one given.

    The histograms, `batch_rows` and `request_success` count from when it is made, which may be
    before the batcher's start; the rest is the batcher's own count. There are no samples before
    the start, nor once the batcher is closed or gone: it is not kept. To be scraped from any
    thread.

    Raises ConfigError where the registry has the figures of another batcher.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, batcher: Observed, registry: CollectorRegistry | None = None) -> None:
        # Weakly: the batcher's own task keeps its handlers, and one that kept the batcher too
        # would keep it from being closed when it is dropped.
        self._batcher = weakref.ref(batcher)
        self._rows = Counter(dict.fromkeys(("decode", "prefill", "draft"), 0))
        self._ended = Counter(dict.fromkeys(("stop", "length", "deadline", "cancelled"), 0))
        self._histograms = {name: _Histogram(bounds) for name, _, bounds in _HISTOGRAMS}
        self.registry = CollectorRegistry() if registry is None else registry
        try:
            self.registry.register(self)
        except ValueError as error:
            raise ConfigError(
                "registry has the figures of another batcher; give each one of its own, or None"
            ) from error
        batcher.attach(self._take)

    def exposition(self) -> bytes:
        """All of the registry in Prometheus' text format, for the body of an HTTP response."""
        text: bytes = generate_latest(self.registry)
        return text

    # -- for the registry -------------------------------------------------------------------

    def describe(self) -> Iterator[Any]:
        """The metric families without samples."""
        return self._families(None)

    def collect(self) -> Iterator[Any]:
        """The metric families as of now."""
        batcher = self._batcher()
        if batcher is None or batcher.health().status == "closed":
            return self._families(None)
        try:
            return self._families((batcher.model_name, batcher.statistics()))
        except PybatcherError:  # not started yet
            return self._families(None)

    def _families(self, seen: tuple[str, BatcherStatistics] | None) -> Iterator[Any]:
        models, counts = ([], None) if seen is None else ([seen[0]], seen[1])
        for figure in _FIGURES:
            family = figure.family(PREFIX + figure.name, figure.help, labels=[MODEL])
            if counts is not None:
                family.add_metric(models, figure.value(counts))
            yield family
        for name, text, label, counter in (
            ("batch_rows", "Rows of forward passes, by their kind.", "kind", self._rows),
            (
                "request_success",
                "Requests that ended, by how: stop, length, scored, embedded, deadline, cancelled, "
                "or an error.",
                "finished_reason",
                self._ended,
            ),
        ):
            family = CounterMetricFamily(PREFIX + name, text, labels=[MODEL, label])
            for model in models:
                for value, count in list(counter.items()):  # the loop's thread may add to it
                    family.add_metric([model, value], count)
            yield family
        for name, text, _ in _HISTOGRAMS:
            family = HistogramMetricFamily(PREFIX + name, text, labels=[MODEL])
            for model in models:
                family.add_metric([model], *self._histograms[name].cumulative())
            yield family

    # -- on the loop's thread ---------------------------------------------------------------

    def _take(self, event: TelemetryEvent) -> None:
        seen = self._histograms
        if isinstance(event, StepEvent):
            self._rows["decode"] += event.decode_rows
            self._rows["prefill"] += event.prefill_rows
            self._rows["draft"] += event.draft_rows
            seen["step_seconds"].add(event.seconds)
            seen["step_engine_seconds"].add(event.engine_seconds)
            return
        self._ended[event.finish_reason] += 1
        seen["request_prompt_tokens"].add(event.prompt_tokens)
        seen["request_generation_tokens"].add(event.generated_tokens)
        seen["request_queue_time_seconds"].add(event.queued)
        seen["e2e_request_latency_seconds"].add(event.total)
        if event.ttft is not None:
            seen["time_to_first_token_seconds"].add(event.ttft)
        if event.itl:
            seen["inter_token_latency_seconds"].add(*event.itl)
            seen["request_time_per_output_token_seconds"].add(sum(event.itl) / len(event.itl))


class _Histogram:
    """Counts by bounds. Not prometheus-client's: that takes a lock and a walk for each value.

    A request of thousands of tokens has as many gaps, and they are counted on the event loop.
    Read from another thread, sum and counts may be some values apart.
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
        """How many are not above each bound, by its name; their sum."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, accumulate(list(self._counts)), strict=True)), self._sum


@dataclass(frozen=True, slots=True)
class _Figure:
    """What the batcher itself counts."""

    family: type[Any]
    name: str
    help: str
    value: Callable[[BatcherStatistics], float]


def _kv_usage(counts: BatcherStatistics) -> float:
    return 1 - (counts.kv_free_blocks + counts.kv_cached_blocks) / counts.kv_total_blocks


_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily
_FIGURES = (
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
    _Figure(_COUNTER, "num_preemptions", "Times a request gave its KV up to others.",
            lambda c: c.preemptions),
    _Figure(_COUNTER, "recomputed_tokens", "Tokens computed again after preemptions.",
            lambda c: c.recomputed_tokens),
    _Figure(_COUNTER, "engine_restarts", "Times the engine was restarted after a failure.",
            lambda c: c.restarts),
    _Figure(_COUNTER, "spec_decode_num_draft_tokens", "Guesses that had rows.",
            lambda c: c.proposed_tokens),
    _Figure(_COUNTER, "spec_decode_num_accepted_tokens", "Guesses that were right.",
            lambda c: c.accepted_tokens),
)  # fmt: skip

_HISTOGRAMS: tuple[tuple[str, str, Sequence[float]], ...] = (
    ("time_to_first_token_seconds", "Submit to first token.", _OF_A_WAIT),
    ("inter_token_latency_seconds", "Gaps between neighbouring tokens.", _OF_A_TOKEN),
    ("request_time_per_output_token_seconds", "Mean gap of a request's tokens.", _OF_A_TOKEN),
    ("e2e_request_latency_seconds", "Submit to the end, whatever it was.", _OF_A_REQUEST),
    ("request_queue_time_seconds", "Submit to admission, or to the end.", _OF_A_WAIT),
    ("request_prompt_tokens", "Prompt tokens of a request.", _OF_TOKENS),
    ("request_generation_tokens", "Generated tokens of a request.", _OF_TOKENS),
    ("step_seconds", "A whole step: planning, engine, delivery.", _OF_A_STEP),
    ("step_engine_seconds", "The engine's part of a step.", _OF_A_STEP),
)

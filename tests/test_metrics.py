"""What a Prometheus server reads, against what the batcher and its events say."""

from __future__ import annotations

import asyncio
import gc
import math
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import prometheus_client
import pytest
from batcher_helpers import PATIENCE, until, wait_for
from scrape import Scrape
from serving_doubles import serving

from pybatcher import (
    Batcher,
    BlockingBatcher,
    BlockingClient,
    ConfigError,
    QueueFullError,
    RequestEvent,
    StepEvent,
)
from pybatcher.metrics import Metrics
from pybatcher.testing import FakeEngine, fake_batcher

PROMPT = "Once upon a time"


async def test_the_scrape_is_what_statistics_and_events_say() -> None:
    """num_preemptions among them: what is scraped is the sum over requests."""
    steps: list[StepEvent] = []
    requests: list[RequestEvent] = []
    engine = FakeEngine(n_parallel=4, n_ctx=512, step_delay=0.0003)
    batcher = fake_batcher(engine, max_draft_tokens=4, max_queue_requests=30)
    metrics = Metrics(batcher)
    batcher.attach(lambda e: (steps if isinstance(e, StepEvent) else requests).append(e))
    async with batcher:
        tasks = [
            asyncio.create_task(
                batcher.generate(
                    "ab" * (1 + i % 40), max_tokens=1 + i % 50, timeout=0.01 if i % 7 == 6 else None
                )
            )
            for i in range(40)
        ]
        await until(lambda: batcher.statistics().running > 0)
        tasks[3].cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        counts, scrape = batcher.statistics(), Scrape(metrics)

    assert sum(isinstance(end, QueueFullError) for end in ends) == 10
    assert scrape["num_requests_rejected_total"] == counts.rejected == 10
    assert scrape["num_requests_running"] == scrape["num_requests_waiting"] == 0
    assert scrape["kv_cache_usage_perc"] == 0
    assert scrape["prompt_tokens_total"] == counts.prompt_tokens
    assert scrape["generation_tokens_total"] == counts.generated_tokens
    assert scrape["prefix_cache_queries_total"] == counts.prompt_tokens
    assert scrape["prefix_cache_hits_total"] == counts.cached_tokens > 0
    assert scrape["prefix_cache_hits_total"] == sum(e.cached_tokens for e in requests)
    assert scrape["spec_decode_num_draft_tokens_total"] == counts.proposed_tokens
    assert scrape["spec_decode_num_accepted_tokens_total"] == counts.accepted_tokens
    assert scrape["num_preemptions_total"] == sum(e.preemptions for e in requests)
    assert scrape["engine_restarts_total"] == 0
    assert scrape["recomputed_tokens_total"] == sum(e.recomputed_tokens for e in requests)
    assert scrape.by("batch_rows_total", "kind") == {
        "decode": sum(e.decode_rows for e in steps),
        "prefill": sum(e.prefill_rows for e in steps),
        "draft": sum(e.draft_rows for e in steps),
    }
    ended = {"stop": 0, "length": 0, "deadline": 0, "cancelled": 0}
    ended.update(Counter(e.finish_reason for e in requests))
    assert scrape.by("request_success_total", "finished_reason") == ended
    assert sum(ended.values()) == counts.submitted == 30

    of_requests = {
        "time_to_first_token_seconds": [e.ttft for e in requests if e.ttft is not None],
        "inter_token_latency_seconds": [gap for e in requests for gap in e.itl],
        "request_time_per_output_token_seconds": [
            sum(e.itl) / len(e.itl) for e in requests if e.itl
        ],
        "e2e_request_latency_seconds": [e.total for e in requests],
        "request_queue_time_seconds": [e.queued for e in requests],
        "request_prefill_time_seconds": [e.ttft - e.queued for e in requests if e.ttft is not None],
        "request_decode_time_seconds": [sum(e.itl) for e in requests if e.ttft is not None],
        "request_prompt_tokens": [e.prompt_tokens for e in requests],
        "request_generation_tokens": [e.generated_tokens for e in requests],
        "step_seconds": [e.seconds for e in steps],
        "step_engine_seconds": [e.engine_seconds for e in steps],
    }
    for name, values in of_requests.items():
        assert scrape[f"{name}_count"] == len(values)
        assert scrape[f"{name}_sum"] == pytest.approx(sum(values))
        buckets = scrape.by(f"{name}_bucket", "le")
        assert len(buckets) > 10
        for bound, count in buckets.items():
            assert count == sum(value <= float(bound) for value in values)


async def test_gauges_while_requests_run_and_wait() -> None:
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=2, n_ctx=256, before_step=lambda plan: wait_for(go_on))
    async with fake_batcher(engine, batch_size=5) as batcher:
        metrics = Metrics(batcher)
        tasks = [asyncio.create_task(batcher.generate([7] * 40, max_tokens=2)) for _ in range(5)]
        await until(lambda: batcher.statistics().running == 2)
        go_on.set()
        await until(lambda: batcher.statistics().generated_tokens > 0)
        go_on.clear()
        counts, scrape = batcher.statistics(), Scrape(metrics)
        assert scrape["num_requests_running"] == counts.running
        assert scrape["num_requests_waiting"] == counts.queued
        in_use = counts.kv_total_blocks - counts.kv_free_blocks - counts.kv_cached_blocks
        assert scrape["kv_cache_usage_perc"] == pytest.approx(in_use / counts.kv_total_blocks)
        go_on.set()
        await asyncio.gather(*tasks)


async def test_the_shape_of_the_kv_cache_is_told_once_it_was_asked_for() -> None:
    async with fake_batcher(FakeEngine(n_ctx=512, block_size=16)) as batcher:
        metrics = Metrics(batcher)
        assert "vllm:cache_config_info" not in Scrape(metrics).told
        await metrics.refresh()
        ((labels, value),) = Scrape(metrics).told["vllm:cache_config_info"]
    assert value == 1
    assert (labels["block_size"], labels["num_gpu_blocks"]) == ("16", "32")
    assert labels["enable_prefix_caching"] == "True"


async def test_each_series_has_the_name_of_the_model() -> None:
    async with fake_batcher() as batcher:
        metrics = Metrics(batcher)
        await batcher.generate(PROMPT, max_tokens=3)
        scrape = Scrape(metrics)
    assert {sample.labels["model_name"] for sample in scrape.samples} == {"fake"}
    own = {name for name in scrape.told if name.startswith("pybatcher:")}
    also = {name for name in scrape.told if name.startswith("vllm:")}
    assert own | also == set(scrape.told)
    for name in also:
        assert scrape.told[name] == scrape.told[name.replace("vllm:", "pybatcher:")]
    assert len(also) > 18
    assert {family.type for family in scrape.families} == {"gauge", "counter", "histogram"}
    assert all(family.documentation.endswith(".") for family in scrape.families)


async def test_before_the_start_and_after_the_batcher() -> None:
    batcher = fake_batcher()
    metrics = Metrics(batcher)
    before = Scrape(metrics)
    async with batcher:
        await batcher.generate(PROMPT, max_tokens=3, ignore_eos=True)
        families = [family.name for family in Scrape(metrics).families]
    assert (before.samples, [family.name for family in before.families]) == ([], families)
    dropped = weakref.ref(batcher)
    del batcher
    gc.collect()
    assert dropped() is None
    assert Scrape(metrics).samples == []


async def test_the_default_registry_is_left_alone_and_a_given_one_is_used() -> None:
    before = list(prometheus_client.REGISTRY.collect())
    own = prometheus_client.CollectorRegistry()
    async with fake_batcher() as batcher, fake_batcher() as other:
        assert Metrics(batcher).registry is not Metrics(batcher).registry
        assert Metrics(batcher, own).registry is own
        with pytest.raises(ConfigError, match="batcher is 5; it must be a Batcher"):
            Metrics(5)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="registry has the figures of another batcher"):
            Metrics(other, own)
        Metrics(other)
        assert b"pybatcher:num_requests_running" in prometheus_client.generate_latest(own)
    names = [family.name for family in prometheus_client.REGISTRY.collect()]
    assert names == [family.name for family in before]


def test_a_blocking_batcher_and_the_real_engine_scraped_by_other_threads() -> None:
    with BlockingBatcher() as batcher:
        metrics = Metrics(batcher)
        stop, scrapes = threading.Event(), []

        def scrape() -> None:
            while not stop.is_set():
                scrapes.append(Scrape(metrics))
                time.sleep(0.001)

        thread = threading.Thread(target=scrape)
        thread.start()
        completion = batcher.generate(PROMPT, max_tokens=40, ignore_eos=True)
        stop.set()
        thread.join()
        last = Scrape(metrics)
    tokens = [each["generation_tokens_total"] for each in scrapes]
    assert tokens == sorted(tokens)
    assert last["generation_tokens_total"] == 40
    assert last["time_to_first_token_seconds_sum"] == pytest.approx(completion.timeline.ttft)
    assert Scrape(metrics).samples == [], "after the close"


@pytest.mark.parametrize(
    ("name", "shortest", "longest"),
    [
        ("time_to_first_token_seconds", 0.001, 60),
        ("inter_token_latency_seconds", 0.0001, 5),
        ("e2e_request_latency_seconds", 0.001, 1200),
        ("request_prefill_time_seconds", 0.001, 60),
        ("request_decode_time_seconds", 0.001, 1200),
        ("step_seconds", 0.0001, 5),
    ],
)
async def test_quantiles_can_be_told_apart(name: str, shortest: float, longest: float) -> None:
    """The smallest model is not all in the first bucket, nor a large one in the last."""
    async with Batcher() as batcher:
        metrics = Metrics(batcher)
        await batcher.generate(PROMPT, max_tokens=2)
        buckets = Scrape(metrics).by(f"{name}_bucket", "le")
    finite = sorted(bound for bound in map(float, buckets) if math.isfinite(bound))
    assert finite[0] <= shortest
    assert finite[-1] >= longest


@pytest.mark.slow
def test_a_sidecar_through_a_blocking_client(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        with BlockingClient(running.socket) as client:
            metrics, ended = Metrics(client), threading.Event()
            client.attach(lambda event: ended.set() if isinstance(event, RequestEvent) else None)
            client.generate(PROMPT, max_tokens=5, ignore_eos=True)
            assert ended.wait(PATIENCE)
            scrape = Scrape(metrics)
            assert scrape["generation_tokens_total"] == 5
            assert scrape["request_generation_tokens_sum"] == 5
            assert scrape["kv_cache_usage_perc"] < 1
            assert {sample.labels["model_name"] for sample in scrape.samples} == {"tiny"}
        assert Scrape(metrics).samples == [], "after the close"


def test_usage_of_no_kv_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar has no KV between two workers."""
    with BlockingBatcher() as batcher:
        counts = replace(
            batcher.statistics(), kv_total_blocks=0, kv_free_blocks=0, kv_cached_blocks=0
        )
        monkeypatch.setattr(batcher, "statistics", lambda: counts)
        assert Scrape(Metrics(batcher))["kv_cache_usage_perc"] == 0


def test_without_prometheus_client_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import pybatcher\n"
        "try:\n    import pybatcher.metrics\n"
        "except ImportError as error:\n    print(error)"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'pybatcher-engine[metrics]'" in outcome.stdout

"""What a Prometheus server reads of a sidecar, through its clients."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from scrape import Scrape
from serving_doubles import Serving, serving

from pybatcher import Batcher, BlockingClient, Client
from pybatcher.metrics import Metrics

pytestmark = pytest.mark.slow

PROMPT = "Once upon a time"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as one:
        yield one


async def refreshed(metrics: Metrics) -> Scrape:
    await metrics.refresh()
    return Scrape(metrics)


async def n_ended(metrics: Metrics) -> float:
    scrape = await refreshed(metrics)
    return scrape.by("request_success_total", "finished_reason")["length"]


async def no_worker(client: Client) -> None:
    while (await client.statistics()).kv_total_blocks:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_the_scrape_is_what_the_sidecars_statistics_and_events_say(running: Serving) -> None:
    client = Client(running.socket)
    metrics = Metrics(client)
    assert (await refreshed(metrics)).samples == [], "not started yet"
    async with client, Client(running.socket) as other:
        await client.statistics()  # the events are asked for before it
        await asyncio.gather(
            *(one.generate(PROMPT, max_tokens=7, ignore_eos=True) for one in (client, other) * 3)
        )
        before = Scrape(metrics)
        while await n_ended(metrics) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0)
        counts, scrape = await client.statistics(), await refreshed(metrics)
        assert before.samples == [], "nothing was fetched yet"
        assert scrape["generation_tokens_total"] == counts.generated_tokens == 42
        assert scrape["prompt_tokens_total"] == counts.prompt_tokens
        assert scrape["num_requests_running"] == 0
        assert scrape["worker_restarts_total"] == scrape["replayed_requests_total"] == 0
        assert (scrape["num_connections"], scrape["num_workers"]) == (2, 1)
        assert scrape.by("request_success_total", "finished_reason")["length"] == 6
        assert scrape["e2e_request_latency_seconds_count"] == 6
        assert {sample.labels["model_name"] for sample in scrape.samples} == {"tiny"}
        (pid,) = counts.worker_pids
        os.kill(pid, signal.SIGKILL)
        await client.generate(PROMPT, max_tokens=2, ignore_eos=True)
        again = await refreshed(metrics)
        assert again["worker_restarts_total"] == 1
        assert again["generation_tokens_total"] >= scrape["generation_tokens_total"]
    assert (await refreshed(metrics)).samples == [], "after the close"


async def test_between_two_workers_nothing_is_in_use(running: Serving) -> None:
    async with Client(running.socket) as client:
        metrics = Metrics(client)
        os.kill((await client.statistics()).worker_pids[0], signal.SIGKILL)
        await no_worker(client)
        assert (await refreshed(metrics))["kv_cache_usage_perc"] == 0


def test_of_a_blocking_client_it_is_fetched_by_the_scrape(running: Serving) -> None:
    client = BlockingClient(running.socket)
    metrics = Metrics(client)
    assert Scrape(metrics).samples == []
    with client:
        client.generate(PROMPT, max_tokens=5, ignore_eos=True)
        scrape = Scrape(metrics)
        assert scrape["generation_tokens_total"] == 5
        assert scrape["num_connections"] == 1
    assert Scrape(metrics).samples == []


async def test_a_sidecar_that_is_gone_has_no_samples(running: Serving) -> None:
    async with Client(running.socket) as client:
        metrics = Metrics(client)
        assert (await refreshed(metrics)).samples
        client._running_service()._connect_timeout = 0.1  # nobody will be there to wait for
        running.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(running.wait)
        assert (await refreshed(metrics)).samples == []


async def test_a_refresh_of_a_batcher_adds_the_shape_of_its_kv_cache_only() -> None:
    async with Batcher() as batcher:
        metrics = Metrics(batcher)
        names = [sample.name for sample in Scrape(metrics).samples]
        after = [sample.name for sample in (await refreshed(metrics)).samples]
        assert after == [*names, "vllm:cache_config_info"]
        assert "pybatcher:worker_restarts_total" not in names

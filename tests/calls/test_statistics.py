"""Values that are there at once and may be awaited as well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pybatcher import Health
from pybatcher.sidecar.protocol.sidecar_statistics import no_counts
from pybatcher.testing import fake_batcher


async def test_awaited_they_are_themselves() -> None:
    for value in (Health("ready", ""), no_counts()):
        assert await value is value
        assert await value is value, "as often as one likes"


async def test_of_a_batcher_they_are_the_same_with_and_without_await() -> None:
    async with fake_batcher(max_prefixes=2) as batcher:
        await batcher.generate("Once", max_tokens=3)
        await batcher.add_prefix("Once upon", name="once")
        assert await batcher.statistics() == batcher.statistics()
        assert batcher.statistics().completed == 1
        assert await batcher.health() == batcher.health() == Health("ready", "requests are served")
        assert await batcher.prefixes() == batcher.prefixes()
        assert [info.name for info in await batcher.prefixes()] == ["once"]


WAITING = {"queued": 3, "running": 8, "max_running": 8, "max_rows": 100, "kv_total_blocks": 10}


@pytest.mark.parametrize(
    ("counts", "rows", "named"),
    [
        (
            {},
            8.0,
            "3 wait while steps have 8 of 100 rows: all 8 places are taken; raise n_parallel",
        ),
        ({"running": 5}, 5.0, "KV is full; raise n_ctx, or set kv_dtype='int8'"),
        ({"running": 5, "kv_cached_blocks": 4}, 5.0, ""),  # they are admitted with the next step
        ({"queued": 0}, 8.0, ""),
        ({}, 90.0, ""),  # the machine is busy, and no option helps
        ({"max_running": 0, "max_rows": 0}, 0.0, ""),  # of an older sidecar
    ],
)
def test_advice_names_the_option_for_requests_that_wait_without_need(
    counts: dict[str, int], rows: float, named: str
) -> None:
    told = replace(no_counts(), **{**WAITING, **counts}).advice(rows)
    assert named in told
    assert bool(named) == bool(told)


async def test_the_limits_are_those_of_the_batcher() -> None:
    async with fake_batcher(n_parallel=3, n_batch=99) as batcher:
        counts = batcher.statistics()
    assert (counts.max_running, counts.max_rows) == (3, 99)


@pytest.mark.parametrize("status", ["new", "ready", "closing", "closed", "failed", "hung"])
def test_only_ready_is_ok(status: str) -> None:
    assert Health(status, "").ok is (status == "ready")  # type: ignore[arg-type]

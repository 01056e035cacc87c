"""Values that are there at once and may be awaited as well."""

from __future__ import annotations

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


@pytest.mark.parametrize("status", ["new", "ready", "closing", "closed", "failed", "hung"])
def test_only_ready_is_ok(status: str) -> None:
    assert Health(status, "").ok is (status == "ready")  # type: ignore[arg-type]

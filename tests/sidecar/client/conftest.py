"""A sidecar in this process, for the tests of the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from small_sidecar import TEMPLATE, SmallSidecar, sidecar

from pybatcher import Batcher
from pybatcher.testing import FakeEngine, fake_batcher


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "batcher.sock"


@pytest.fixture
async def batcher() -> AsyncIterator[Batcher]:
    """Slow enough to be interrupted."""
    engine = FakeEngine(step_delay=0.002, n_ctx=2**16, n_parallel=16)
    async with fake_batcher(engine, chat_template=TEMPLATE, max_prefixes=2) as one:
        yield one


@pytest.fixture
async def served(path: Path, batcher: Batcher) -> AsyncIterator[SmallSidecar]:
    async with sidecar(path, batcher) as one:
        yield one

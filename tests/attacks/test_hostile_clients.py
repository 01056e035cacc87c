"""Hostile clients of a sidecar: others get the right tokens, nothing is leaked, nobody dies.

What it costs others in time is measured by bench/hostile/socket_hostile.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from bench.hostile.attackers import KINDS, attack
from bench.serving.process_watch import rss_mib
from bench.serving.sidecar_process import Sidecar, open_sidecar
from pybatcher import Client

SECONDS = 1.0
RATE = 5000.0  # of acts; most kinds do not come that far
MOST_MIB = 96.0  # that all attackers together may make the front grow
PATIENCE = 30.0
PROMPTS = ["Once upon a time", "There was a fox", [3, 1, 4, 1, 5]]


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    with open_sidecar(n_ctx=4096, n_parallel=8, n_threads=1) as running:
        asyncio.run(running.ready())
        yield running
        assert "Traceback" not in running.said()
        running.close()


@pytest.fixture(scope="module")
def first(sidecar: Sidecar) -> tuple[list[tuple[int, ...]], float]:
    """The tokens before anybody was hostile, and the front's memory then."""
    tokens = asyncio.run(_tokens(sidecar))
    return tokens, rss_mib(sidecar.pid)


async def _tokens(sidecar: Sidecar) -> list[tuple[int, ...]]:
    async with Client(sidecar.socket) as client:
        asked = [
            client.generate(prompt, max_tokens=40, ignore_eos=True, temperature=i % 2, seed=i)
            for i, prompt in enumerate(PROMPTS)
        ]
        return [completion.token_ids for completion in await asyncio.gather(*asked)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hang-ups"])  # need options
async def test_others_get_their_tokens_and_nothing_is_left(
    kind: str, sidecar: Sidecar, first: tuple[list[tuple[int, ...]], float]
) -> None:
    expected, memory = first
    files, worker = sidecar.n_files, sidecar.worker_pids[0]
    attacking = asyncio.ensure_future(attack(sidecar.socket, kind, SECONDS, RATE))
    n_asked = 0
    while not attacking.done() or not n_asked:
        async with asyncio.timeout(PATIENCE):
            assert await _tokens(sidecar) == expected
        n_asked += 1
    assert attacking.result() > 0
    end = time.monotonic() + PATIENCE
    while sidecar.n_files > files:
        assert time.monotonic() < end, "descriptors are left"
        await asyncio.sleep(0.05)
    assert rss_mib(sidecar.pid) < memory + MOST_MIB
    assert sidecar.worker_pids[0] == worker
    assert await _tokens(sidecar) == expected

"""2,000 connections at once: nobody else notices, and nothing of them stays."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from collections.abc import Iterator

import pytest
from raw_server import GET, served, until_cut

pytestmark = pytest.mark.slow

CROWD = 2000


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Room for both ends of all connections, which are of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CROWD + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"{wanted} open files are not allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("max_connections", [64, 2 * CROWD], ids=["pushed out", "held"])
@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nhost: h"], ids=["idle", "half a head"])
async def test_a_crowd_keeps_nobody_out(begun: bytes, max_connections: int) -> None:
    async with served(max_connections=max_connections, backlog=1024) as running:
        waiting = await running.send(GET.replace(b" / ", b" /slow "))
        while not running.app.n_begun:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        n_files = len(os.listdir("/proc/self/fd"))
        for i in range(0, CROWD, 100):
            await asyncio.gather(*(running.send(begun) for _ in range(100)))
            if i % 500 == 0:
                assert b"200 OK" in await (await running.send(GET)).readline()
        most = min(max_connections, CROWD + 5)
        assert running.server.n_connections <= most
        running.app.go.set()
        assert b"200 OK" in await waiting.readline()
        crowd, running.writers[1:] = running.writers[1:], []
        for writer in crowd:
            writer.transport.abort()
        while running.server.n_connections > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= n_files + 1
        assert not running.server._strangers
        running.writers[0].write(GET.replace(b"host: here", b"host: here\r\nconnection: close"))
        assert (await until_cut(waiting)).count(b"200 OK") == 1

"""Counts of a front: read while workers end, are replaced, are drained, and are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
from serving_doubles import serving

from pybatcher import Client
from pybatcher.calls.questions import ReadStatistics
from pybatcher.sidecar.front import front as front_module
from pybatcher.sidecar.front.front import Front
from pybatcher.sidecar.front.serve_config import ServeConfig
from pybatcher.sidecar.front.worker_counts import Totals
from pybatcher.sidecar.front.worker_spec import WorkerSpec
from pybatcher.sidecar.protocol.sidecar_statistics import SidecarStatistics, no_counts

pytestmark = pytest.mark.slow

NO_COUNTERS = (
    "queued",
    "queued_tokens",
    "running",
    "max_running",
    "max_rows",
    "kv_total_blocks",
    "kv_free_blocks",
    "kv_cached_blocks",
    "connections",
    "in_flight",
    "worker_pids",
)


class Pending:
    n_in_flight = 0

    def fail_all(self, error: Exception) -> None:
        pass


class Remote:
    pending = Pending()

    def take_prefixes_of(self, other: Remote) -> None:
        pass


class SupervisorDouble:
    """Has seen two restarts and three replays. It answers, and ends, when it is told to."""

    made: ClassVar[list[SupervisorDouble]] = []

    def __init__(self, spec: WorkerSpec, *_: Any, **__: Any) -> None:
        self.spec = spec
        self.remote = Remote()
        self.failure = None
        self.worker_pid = None
        self.ended, self.answers, self.asked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.opened: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.opened.set_result({})
        self.made.append(self)

    async def run(self) -> None:
        await self.ended.wait()

    def stop(self) -> None:
        self.ended.set()

    def drain_soon(self) -> None:
        pass

    async def refresh_counts(self) -> None:
        self.asked.set()
        await self.answers.wait()

    def totals(self) -> Totals:
        return Totals(no_counts(), 2, 3)


async def test_a_supervisor_that_ends_while_it_is_asked_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(front_module, "WorkerSupervisor", SupervisorDouble)
    monkeypatch.setattr(SupervisorDouble, "made", [])
    front = Front(WorkerSpec(), ServeConfig(), lambda: 0)
    await front.reload({})
    old, new = SupervisorDouble.made
    asking = asyncio.create_task(front.ask(ReadStatistics()))
    await old.asked.wait()
    await new.asked.wait()
    old.ended.set()  # drained: it ends while the question is on its way
    old.answers.set()
    while len(front._supervisors) == 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    new.answers.set()
    statistics = await asking
    assert (statistics.worker_restarts, statistics.replayed_requests) == (4, 6)
    assert (await front.ask(ReadStatistics())).worker_restarts == 4
    new.stop()
    await asyncio.gather(*front._supervisors.values())


class Watcher:
    """Asks for statistics over and over, and compares each with the one before."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.last: SidecarStatistics | None = None
        self.n_asked = 0
        self.is_over = False

    async def run(self) -> None:
        while not self.is_over:
            now = await self._client.statistics()
            if self.last is not None:
                before, after = asdict(self.last), asdict(now)
                fallen = {
                    name: (before[name], after[name])
                    for name in before
                    if name not in NO_COUNTERS and after[name] < before[name]
                }
                assert not fallen
            self.last = now
            self.n_asked += 1
            await asyncio.sleep(0.001)  # the workers and the front need the cores too

    async def ask_again(self, n: int = 3) -> SidecarStatistics:
        enough = self.n_asked + n
        while self.n_asked < enough:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert self.last is not None
        return self.last


async def test_counters_never_fall_while_workers_die_are_replaced_and_are_drained(
    tmp_path: Path,
) -> None:
    n_requests = n_kills = 0
    options = ("--n-ctx", "16384", "--n-parallel", "4", "--max-worker-restarts", "1000")
    with serving(tmp_path, *options) as running:
        async with Client(running.socket) as client, Client(running.socket) as asked:
            watchers = [Watcher(asked) for _ in range(2)]
            watching = [asyncio.create_task(watcher.run()) for watcher in watchers]
            long = {"max_tokens": 150, "ignore_eos": True}
            for way in ("drained", "killed", "killed while drained", "killed, then drained"):
                streams = [
                    asyncio.create_task(client.generate(f"Once {way} {i}", **long))
                    for i in range(4)
                ]
                n_requests += len(streams)
                seen = await watchers[0].ask_again()
                if way != "drained":
                    pid = seen.worker_pids[0]
                    if way == "killed while drained":
                        await client.reload()
                    with suppress(ProcessLookupError):  # drained by now
                        os.kill(pid, signal.SIGKILL)
                        n_kills += way != "killed while drained"
                if way in ("drained", "killed, then drained"):
                    await client.reload()
                await asyncio.gather(*streams)
                await watchers[0].ask_again()
            for watcher in watchers:
                watcher.is_over = True
            await asyncio.gather(*watching)
            last = await asked.statistics()
    assert n_kills <= last.worker_restarts <= n_kills + 1
    assert last.submitted <= n_requests
    assert last.completed <= n_requests
    assert last.in_flight == 0
    assert min(watcher.n_asked for watcher in watchers) > 10

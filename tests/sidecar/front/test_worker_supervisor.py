"""What a supervisor does about workers that die of a request, make no progress, or are others."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from virtual_time import in_virtual_time

from pybatcher import Completion, EngineFailedError, ModelFormatError
from pybatcher.calls.call import Call
from pybatcher.calls.reply import Reply
from pybatcher.calls.statistics import BatcherStatistics
from pybatcher.calls.telemetry import Telemetry
from pybatcher.models import tiny_path
from pybatcher.sidecar import worker
from pybatcher.sidecar.front.oom_kills import OomKills
from pybatcher.sidecar.front.serve_config import ServeConfig
from pybatcher.sidecar.front.watchdog import Watchdog
from pybatcher.sidecar.front.worker_process import ExitReason, WorkerProcess
from pybatcher.sidecar.front.worker_spec import WorkerSpec
from pybatcher.sidecar.front.worker_supervisor import WorkerSupervisor
from pybatcher.sidecar.protocol.sidecar_statistics import no_counts
from pybatcher.sidecar.replay.link import Link

pytestmark = pytest.mark.slow

OPTIONS = {"n_ctx": 8192, "n_parallel": 16, "n_threads": 1}


@contextlib.asynccontextmanager
async def supervised(way: str | None = None, **options: Any) -> AsyncIterator[WorkerSupervisor]:
    """A supervisor whose workers have something wrong with them."""
    spec = WorkerSpec(system_prompt=way, options=OPTIONS, model=options.pop("model", None))
    config = ServeConfig(**{"hang_timeout": 1.0, "max_worker_restarts": 9, **options})
    telemetry = Telemetry(asyncio.get_running_loop().time)
    module = "pybatcher.sidecar.worker" if way is None else "odd_worker"
    supervisor = WorkerSupervisor(
        spec, config, numbers=count(1), telemetry=telemetry, module=module
    )
    running = asyncio.ensure_future(supervisor.run())
    try:
        yield supervisor
    finally:
        supervisor.stop()
        await running


async def generate(supervisor: WorkerSupervisor, prompt: str, **sampling: Any) -> Completion:
    reply = Reply(streams=False)
    sampling = {"max_tokens": 30, "ignore_eos": True, **sampling}
    call = Call(
        priority=0, timeout=None, namespace=None, content=prompt, params=None, sampling=sampling
    )
    await supervisor.remote.submit(call, reply)
    while not reply.ended:
        await reply.wait()
    return reply.result()


async def test_a_request_that_kills_workers_fails_alone() -> None:
    prompts = [f"Once upon {i}" for i in range(9)]
    async with supervised() as supervisor:
        healthy = [await generate(supervisor, prompt) for prompt in prompts]
    prompts.insert(4, "a poisonous one")
    async with supervised("poison") as supervisor:
        results = await asyncio.gather(
            *(generate(supervisor, prompt) for prompt in prompts), return_exceptions=True
        )
        assert supervisor.restarts == 4
        assert supervisor.health().ok
        assert (await generate(supervisor, "and on it goes", max_tokens=3)).token_ids
    poisonous = results.pop(4)
    assert isinstance(poisonous, EngineFailedError)
    assert "this request failed" in str(poisonous)
    outputs = [result.token_ids for result in results if isinstance(result, Completion)]
    assert outputs == [one.token_ids for one in healthy]


async def test_requests_that_kill_workers_never_end_the_supervisor() -> None:
    async with supervised("poison", max_worker_restarts=1) as supervisor:
        results = await asyncio.gather(
            *(generate(supervisor, f"poison {i}") for i in range(3)),
            generate(supervisor, "Once"),
            return_exceptions=True,
        )
        assert supervisor.failure is None
        assert (await generate(supervisor, "and on it goes", max_tokens=3)).token_ids
    *poisonous, honest = results
    assert all("this request failed" in str(error) for error in poisonous)
    assert isinstance(honest, Completion)


@pytest.mark.parametrize("is_known", [True, None])
async def test_a_request_that_takes_all_memory_fails_alone(
    monkeypatch: pytest.MonkeyPatch, is_known: bool | None
) -> None:
    """Where the system does not count such kills, a SIGKILL is taken for one as well."""
    monkeypatch.setattr(OomKills, "rose", lambda _: is_known)
    async with supervised("memory", max_worker_restarts=4) as supervisor:
        results = await asyncio.gather(
            generate(supervisor, "poison"),
            generate(supervisor, "Once"),
            generate(supervisor, "poison, too"),
            return_exceptions=True,
        )
        assert supervisor.failure is None
        said = "by the system for lack of memory" if is_known else "SIGKILL"
        assert said in supervisor.health().reason
    assert all("this request failed" in str(error) for error in results[::2])
    assert isinstance(results[1], Completion)


async def test_a_model_that_is_gone_for_a_moment_is_opened_again(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_path(), model)
    async with supervised(None, model=str(model), max_worker_restarts=1) as supervisor:
        await supervisor.opened
        begun = asyncio.ensure_future(generate(supervisor, "Once", max_tokens=1500))
        entries = supervisor.remote.pending._journal
        while not any(entry.num_tokens for entry in entries.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        model.rename(tmp_path / "away")
        assert supervisor.worker_pid is not None
        os.kill(supervisor.worker_pid, signal.SIGKILL)
        while not supervisor._n_failed_starts:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert supervisor.health().ok
        assert "could not be started" in supervisor.health().reason
        (tmp_path / "away").rename(model)
        assert len((await begun).token_ids) == 1500
        assert supervisor.restarts == 1


@in_virtual_time
async def test_tries_to_start_another_worker_back_off_within_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    tries: list[float] = []
    processes: list[ProcessDouble] = []

    def spawn(*_: Any, **__: Any) -> ProcessDouble:
        if processes:
            tries.append(loop.time())
            raise OSError(errno.EMFILE, "too many")
        processes.append(ProcessDouble())
        return processes[0]

    monkeypatch.setattr(WorkerProcess, "spawn", spawn)
    monkeypatch.setattr(worker, "Batcher", OpenedAtOnce)
    async with supervised(max_worker_restarts=4, worker_restart_window=60.0) as supervisor:
        await supervisor.opened
        processes[0].kill()
        while supervisor.failure is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert isinstance(supervisor.failure, EngineFailedError)
        assert "no other could be started" in str(supervisor.failure)
    pauses = [later - sooner for sooner, later in pairwise(tries)]
    assert pauses[:6] == pytest.approx([0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
    assert max(pauses) == pytest.approx(15.0)
    assert 60.0 <= tries[-1] - tries[0] <= 75.0


@pytest.mark.parametrize("way", ["stuck", "deaf"])
async def test_a_worker_that_hangs_is_killed_and_its_calls_go_on(way: str, tmp_path: Path) -> None:
    async with supervised(f"{way}:{tmp_path}") as supervisor:
        await supervisor.opened
        first = supervisor.worker_pid
        assert len((await generate(supervisor, "Once")).token_ids) == 30
        assert supervisor.worker_pid != first
        assert supervisor.restarts == 1


async def test_a_worker_that_reads_a_prompt_for_longer_than_a_hang_is_left_alone() -> None:
    async with supervised("reading", hang_timeout=2.0) as supervisor:
        assert len((await generate(supervisor, "Once")).token_ids) == 30
        assert supervisor.restarts == 0


class OpenedAtOnce:
    """In the place of a worker's batcher, and of its service."""

    runtime = SimpleNamespace(fingerprint="of a model")

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def start(self) -> None:
        pass

    def _running_service(self) -> OpenedAtOnce:
        return self

    async def ask(self, question: object) -> dict[str, Any]:
        return {}

    def statistics(self) -> BatcherStatistics:
        return no_counts()

    def heartbeat(self) -> tuple[bool, int]:
        return False, 0


@in_virtual_time
async def test_a_worker_beats_in_time_from_its_first_request_on() -> None:
    """Also where the period that it is told with that request is shorter than the one before."""
    loop = asyncio.get_running_loop()
    beaten: asyncio.Future[float] = loop.create_future()

    def take(method: str, params: list[Any]) -> None:
        if method == "beat":
            beaten.set_result(loop.time())

    ours, theirs = socket.socketpair()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "Batcher", OpenedAtOnce)
        running = asyncio.create_task(worker.Worker(theirs).run())
        link = Link(peer="a worker", on_notification=take)
        await loop.create_connection(lambda: link, sock=ours)
        await link.request("open", [WorkerSpec(beat_period=0.1).to_wire()])
        opened = loop.time()
        assert await beaten - opened == pytest.approx(0.1)
        link.close()
        await running


class ProcessDouble:
    """A worker within this process."""

    pid = 1

    def __init__(self) -> None:
        self.sock, self._theirs = socket.socketpair()
        self.sock.setblocking(False)
        self._running = asyncio.create_task(worker.Worker(self._theirs).run())

    def kill(self) -> None:
        self._theirs.shutdown(socket.SHUT_RDWR)

    async def wait(self) -> ExitReason:
        await asyncio.shield(self._running)
        return ExitReason(0, "exited")


@in_virtual_time
async def test_where_no_process_can_be_started_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = iter([True, True, False, True, False])

    def spawn(*_: Any, **__: Any) -> ProcessDouble:
        if next(outcomes):
            raise OSError(errno.EAGAIN, "no room")
        return ProcessDouble()

    monkeypatch.setattr(WorkerProcess, "spawn", spawn)
    monkeypatch.setattr(worker, "Batcher", OpenedAtOnce)
    async with supervised() as supervisor:
        assert await asyncio.wait_for(supervisor.opened, 60)
        assert asyncio.get_running_loop().time() == pytest.approx(2.0)  # one pause for each
        assert supervisor.restarts == 2
        assert "process could not be started: [Errno 11] no room" in caplog.text
        await asyncio.sleep(2.5)
        assert supervisor._standby is not None
        assert next(outcomes, None) is None


@in_virtual_time
async def test_where_no_process_can_ever_be_started_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spawn(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(WorkerProcess, "spawn", spawn)
    async with supervised(max_worker_restarts=3) as supervisor:
        with pytest.raises(EngineFailedError, match=r"not be started: .* max_worker_restarts"):
            await asyncio.wait_for(supervisor.opened, 60)


def test_a_worker_that_gives_up_exits_also_where_the_log_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    exited: list[int] = []
    monkeypatch.setattr("pybatcher.sidecar.worker._LOGGER.critical", full)
    monkeypatch.setattr("pybatcher.sidecar.worker.os._exit", exited.append)
    with pytest.raises(OSError, match="no space"):
        worker._give_up(EngineFailedError("broken"))
    assert exited == [70]


async def test_a_batcher_that_has_failed_for_good_takes_its_worker_along(tmp_path: Path) -> None:
    async with supervised(f"hopeless:{tmp_path}") as supervisor:
        assert len((await generate(supervisor, "Once")).token_ids) == 30
        assert supervisor.restarts == 1
        assert "status 70" in supervisor.health().reason


async def test_nobody_goes_on_with_another_model() -> None:
    async with supervised("other") as supervisor:
        begun = asyncio.ensure_future(generate(supervisor, "Once", max_tokens=1900))
        entries = supervisor.remote.pending._journal
        while not any(entry.num_tokens for entry in entries.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert supervisor.worker_pid is not None
        os.kill(supervisor.worker_pid, signal.SIGKILL)
        fresh = asyncio.ensure_future(generate(supervisor, "Twice"))
        with pytest.raises(EngineFailedError, match="another model's"):
            await begun
        assert len((await fresh).token_ids) == 30  # it has no tokens yet: any model will do


async def test_a_model_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    async with supervised(None, model=str(tmp_path)) as supervisor:
        with pytest.raises(ModelFormatError):
            await supervisor.opened
        assert supervisor.restarts == 0
        assert supervisor.health().status == "failed"
        with pytest.raises(ModelFormatError):
            await generate(supervisor, "Once")


async def test_without_restarts_the_first_death_is_the_end() -> None:
    async with supervised(None, max_worker_restarts=0) as supervisor:
        await supervisor.opened
        asking = asyncio.ensure_future(generate(supervisor, "Once", max_tokens=1900))
        assert supervisor.worker_pid is not None
        os.kill(supervisor.worker_pid, signal.SIGKILL)
        with pytest.raises(EngineFailedError, match="max_worker_restarts"):
            await asking
        assert supervisor.health().status == "failed"
        assert supervisor.totals().counts.running == 0


async def test_each_worker_has_the_time_that_starting_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[Watchdog] = []

    class Noting(Watchdog):
        def begin(self) -> None:
            begun.append(self)
            super().begin()

    monkeypatch.setattr("pybatcher.sidecar.front.worker_supervisor.Watchdog", Noting)
    async with supervised() as supervisor:
        await supervisor.opened
        n_begun = len(begun)
        assert supervisor.worker_pid is not None
        os.kill(supervisor.worker_pid, signal.SIGKILL)
        assert (await generate(supervisor, "Once", max_tokens=3)).token_ids
        assert len(begun) == n_begun + supervisor.restarts == n_begun + 1


async def test_opening_has_its_time() -> None:
    async with supervised(None, start_timeout=0.1, max_worker_restarts=1) as supervisor:
        with pytest.raises(EngineFailedError, match="not opened the model within start_timeout"):
            await supervisor.opened

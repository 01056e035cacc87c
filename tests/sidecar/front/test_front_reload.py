"""A reload whose new supervisor ends at once: it says so, and the old one goes on."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from batcher_helpers import PATIENCE

from pybatcher.errors import EngineFailedError
from pybatcher.sidecar.front.front import Front
from pybatcher.sidecar.front.serve_config import ServeConfig
from pybatcher.sidecar.front.worker_spec import WorkerSpec
from pybatcher.sidecar.front.worker_supervisor import WorkerSupervisor


async def test_a_defect_of_the_new_supervisor_is_told_to_who_reloads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = asyncio.Event()

    async def run(self: WorkerSupervisor) -> None:
        if self.spec.system_prompt == "broken":
            raise ZeroDivisionError("a defect")
        await stopped.wait()

    monkeypatch.setattr(WorkerSupervisor, "run", run)
    monkeypatch.setattr(WorkerSupervisor, "stop", lambda _: stopped.set())
    front = Front(WorkerSpec(), ServeConfig(), lambda: 0)
    with pytest.raises(EngineFailedError, match="a defect"):
        await asyncio.wait_for(front.reload({"system_prompt": "broken"}), PATIENCE)
    assert not front.failed.done()
    await front.close(EngineFailedError("the end"))


async def test_a_lookup_that_hangs_takes_no_thread_of_others_and_no_later_reload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a name in a cache on a mount that hangs."""
    stopped, go = asyncio.Event(), threading.Event()

    async def run(self: WorkerSupervisor) -> None:
        self.opened.set_result({"model": self.spec.model})
        await stopped.wait()

    def found(self: WorkerSpec) -> WorkerSpec:
        if self.model == "hangs":
            go.wait()
        return self

    monkeypatch.setattr(WorkerSupervisor, "run", run)
    monkeypatch.setattr(WorkerSupervisor, "stop", lambda _: stopped.set())
    monkeypatch.setattr(WorkerSpec, "found", found)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    front = Front(WorkerSpec(), ServeConfig(), lambda: 0)
    hanging = asyncio.create_task(front.reload({"model": "hangs"}))
    try:
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(int), PATIENCE) == 0
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        hello = await asyncio.wait_for(front.reload({"model": "there"}), PATIENCE)
        assert hello == {"model": "there"}
    finally:
        go.set()
        await front.close(EngineFailedError("the end"))

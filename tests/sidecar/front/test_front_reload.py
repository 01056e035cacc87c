"""A reload whose new supervisor ends at once: it says so, and the old one goes on."""

from __future__ import annotations

import asyncio

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

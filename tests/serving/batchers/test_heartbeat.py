"""How far the engine has come, as a watcher sees it while a step runs."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from batcher_helpers import PATIENCE, until, wait_for
from engine_helpers import OPTIONS, ids, plan

from pybatcher import Batcher
from pybatcher.engine import Engine
from pybatcher.testing import FailStep, FakeEngine, FaultyEngine, HangStep, fake_batcher
from pybatcher.testing.faults import InjectedError

PROMPT = "Once upon a time"


def test_progress_is_seen_while_one_step_runs(checkpoint: Path) -> None:
    """Between steps it is a multiple of what a step counts: other values are read inside one."""
    engine = Engine.load(checkpoint, n_threads=1, n_ctx=4096, n_parallel=16, n_ubatch=1)
    assert engine.progress == 0
    enough = threading.Event()

    def step() -> None:
        seq_ids = [engine.seq_new(str(i)) for i in range(16)]
        engine.step(plan(*((seq_id, ids(199, seq_id), False) for seq_id in seq_ids)))
        for seq_id in seq_ids:
            engine.seq_remove(seq_id)

    def work() -> None:
        while not enough.is_set():
            step()

    step()
    of_a_step = engine.progress
    assert of_a_step > 0
    assert of_a_step % (16 * 199) == 0, "each row goes through each layer"
    thread = threading.Thread(target=work)
    thread.start()
    seen: set[int] = set()
    patience = time.monotonic() + PATIENCE
    while len(seen) < 3 and time.monotonic() < patience:
        if (progress := engine.progress) % of_a_step:
            seen.add(progress)
        time.sleep(0)
    enough.set()
    thread.join()
    assert len(seen) == 3
    assert engine.progress % of_a_step == 0
    engine.close()


def test_it_counts_layers_heads_and_draws_and_outlives_the_engine(checkpoint: Path) -> None:
    engine = Engine.load(checkpoint, n_threads=1, **OPTIONS)
    engine.step(plan((engine.seq_new(), ids(16), False)))
    n_layers = engine.progress
    assert n_layers > 0
    engine.step(plan((0, ids(33), True)))
    assert engine.progress == 4 * n_layers + 2
    engine.restart()
    engine.close()
    assert engine.progress == 4 * n_layers + 2


def test_of_a_fake_engine_it_counts_steps_and_faults_pass_it_through() -> None:
    fake = FakeEngine()
    engine = FaultyEngine(fake, FailStep(at=(2,)))
    step = plan((engine.seq_new(), [1, 2], False))
    engine.step(step)
    assert engine.progress == fake.progress == 1
    with pytest.raises(InjectedError):
        engine.step(step)
    assert engine.progress == 1, "it failed before it was computed"
    engine.step(step)
    engine.close()
    assert engine.progress == 2


async def test_the_heartbeat_of_a_service() -> None:
    """Busy and no further in a step that hangs; further and not busy when it is over."""
    release = threading.Event()
    engine = FaultyEngine(FakeEngine(), HangStep(2, release))
    async with fake_batcher(engine) as batcher:
        service = batcher._running_service()
        assert service.heartbeat() == (False, 0)
        task = asyncio.create_task(batcher.generate(PROMPT, max_tokens=3, ignore_eos=True))
        await until(lambda: engine.n_steps == 2)
        assert service.heartbeat() == (True, 1)
        from_a_thread = await asyncio.to_thread(service.heartbeat)
        assert from_a_thread == (True, 1)
        release.set()
        await task
        await until(lambda: not service.heartbeat()[0])
        assert service.heartbeat()[1] == engine.n_steps


async def test_a_restart_of_the_engine_is_a_job_too() -> None:
    restarting, release = threading.Event(), threading.Event()

    class SlowToRestart(FakeEngine):
        def restart(self) -> None:
            restarting.set()
            wait_for(release)
            super().restart()

    engine = FaultyEngine(SlowToRestart(), FailStep(at=(1,)))
    async with fake_batcher(engine) as batcher:
        task = asyncio.create_task(batcher.generate(PROMPT, max_tokens=3))
        await until(restarting.is_set)
        assert batcher._running_service().heartbeat() == (True, 0)
        release.set()
        await task


async def test_it_grows_with_the_shipped_model() -> None:
    async with Batcher() as batcher:
        service = batcher._running_service()
        seen = [service.heartbeat()[1]]
        async for _ in batcher.stream(PROMPT, max_tokens=10):
            seen.append(service.heartbeat()[1])
        await until(lambda: not service.heartbeat()[0])
        assert seen == sorted(seen)
        assert seen[-1] > seen[0]

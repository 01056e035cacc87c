"""A batcher that is not closed as it should be: collected, cancelled, forked, left at exit."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest
from batcher_helpers import until, wait_for

from pybatcher import BatcherClosedError, InvalidRequestError
from pybatcher.batcher import Batcher
from pybatcher.calls.telemetry import Telemetry
from pybatcher.params.config import EngineConfig, SchedulerConfig, SupervisionConfig
from pybatcher.serving.coordinator import Coordinator
from pybatcher.serving.runtime import Runtime
from pybatcher.testing import FakeEngine, byte_tokenizer, fake_batcher

PROMPT = "Once upon a time"


async def test_a_batcher_that_is_dropped_closes_itself(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    batcher = fake_batcher(engine)
    await batcher.start()
    await batcher.generate(PROMPT, max_tokens=3)
    dropped = weakref.ref(batcher)
    del batcher
    gc.collect()
    assert dropped() is None
    await until(lambda: engine.closed)
    assert not caplog.records, "its task ended, and was not destroyed"


def test_abandoned_before_it_ran() -> None:
    engine = FakeEngine()

    async def make() -> Coordinator:
        return Coordinator(
            engine,
            SchedulerConfig(max_prefixes=0),
            SupervisionConfig(),
            clock=time.monotonic,
            telemetry=Telemetry(time.monotonic),
        )

    asyncio.run(make()).abandon()
    assert engine.closed


def test_asyncio_run_that_ends_without_close() -> None:
    engine = FakeEngine(step_delay=0.001)
    batcher = fake_batcher(engine)
    failed: list[BaseException] = []

    async def caller() -> None:
        try:
            await batcher.generate(PROMPT, max_tokens=8000, ignore_eos=True)
        except BaseException as error:
            failed.append(error)
            raise

    async def main() -> None:
        await batcher.start()
        main.task = asyncio.create_task(caller())
        await until(lambda: batcher.statistics().generated_tokens > 2)

    asyncio.run(main())
    assert len(failed) == 1
    assert isinstance(failed[0], (asyncio.CancelledError, BatcherClosedError))
    for thread in threading.enumerate():
        if thread.name == "pybatcher-engine":
            thread.join(20)
    assert engine.closed


async def test_another_loop_is_refused() -> None:
    async with fake_batcher() as batcher:

        def elsewhere() -> None:
            with pytest.raises(InvalidRequestError, match=r"another event loop.*threadsafe"):
                asyncio.run(batcher.generate(PROMPT))
            with pytest.raises(InvalidRequestError, match="another event loop"):
                asyncio.run(batcher.close())

        await asyncio.to_thread(elsewhere)
        assert (await batcher.generate(PROMPT, max_tokens=1)).token_ids


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
async def test_a_fork_is_told_so() -> None:
    async with fake_batcher() as batcher:
        await batcher.generate(PROMPT, max_tokens=1)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _ask_in_child(batcher, writer)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            told = await asyncio.to_thread(pipe.read)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert "is a fork of it" in told
        assert "BatcherClosedError" in told
        assert "closed: the batcher runs in process" in told
        assert (await batcher.generate(PROMPT, max_tokens=1)).token_ids


def _ask_in_child(batcher: Batcher, writer: int) -> None:
    coroutine = batcher.generate(PROMPT)
    try:
        coroutine.send(None)
    except Exception as error:
        health = batcher.health()
        said = f"{type(error).__name__}: {error}\n{health.status}: {health.reason}"
        os.write(writer, said.encode())


async def test_start_that_fails_can_be_tried_again() -> None:
    attempts: list[int] = []

    def opener(config: EngineConfig, n_prefixes: int) -> Runtime:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("no such disk")
        return Runtime(FakeEngine.from_config(config, n_prefixes), byte_tokenizer())

    batcher = Batcher._over(opener, None, {})
    with pytest.raises(OSError, match="no such disk"):
        await batcher.start()
    assert batcher.health().status == "new"
    async with batcher:
        assert (await batcher.generate(PROMPT, max_tokens=1)).token_ids


async def test_a_start_that_is_cancelled_closes_what_it_opened() -> None:
    engine, go_on = FakeEngine(), threading.Event()

    def opener(config: object, n_prefixes: int) -> Runtime:
        wait_for(go_on)
        return Runtime(engine, byte_tokenizer())

    batcher = Batcher._over(opener, None, {})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(batcher.start(), 0.01)
    go_on.set()
    await until(lambda: engine.closed)


async def test_the_engine_gets_the_options() -> None:
    asked = []

    def opener(config: EngineConfig, n_prefixes: int) -> Runtime:
        asked.append((config.n_parallel, config.n_ctx, config.n_ubatch, n_prefixes))
        return Runtime(FakeEngine.from_config(config, n_prefixes), byte_tokenizer())

    async with Batcher._over(opener, None, {"n_parallel": 3, "n_ctx": 640, "n_batch": 99}) as one:
        assert one.runtime.engine.n_parallel == 3 + 16
    async with Batcher._over(opener, "You are.", {"max_prefixes": 2}) as other:
        assert other.runtime.engine.n_parallel == 32 + 2
        assert other.statistics().max_running == 32
    assert asked == [(3, 640, 99, 16), ("auto", 8192, 512, 2)]


EXITS = {
    "asyncio.run, no close": """
        async def main():
            batcher = fake_batcher(engine)
            await batcher.start()
            await batcher.generate("x", max_tokens=3)
        asyncio.run(main())
    """,
    "global batcher, no close, a step under way": """
        engine = FakeEngine(step_delay=0.2)
        batcher = fake_batcher(engine)
        async def main():
            await batcher.start()
            task = asyncio.create_task(batcher.generate("x", max_tokens=300))
            while not engine.plans:
                await asyncio.sleep(0.001)
        asyncio.run(main())
    """,
    "loop never closed": """
        loop = asyncio.new_event_loop()
        batcher = fake_batcher(engine)
        loop.run_until_complete(batcher.start())
        loop.run_until_complete(batcher.generate("x", max_tokens=3))
    """,
    "loop on a daemon thread, a step under way": """
        import threading, time
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        engine = FakeEngine(step_delay=0.2)
        batcher = fake_batcher(engine)
        asyncio.run_coroutine_threadsafe(batcher.start(), loop).result()
        asyncio.run_coroutine_threadsafe(batcher.generate("x", max_tokens=300), loop)
        while not engine.plans:
            time.sleep(0.001)
    """,
    "blocking, no close, a step under way": """
        import threading, time
        engine = FakeEngine(step_delay=0.2)
        batcher = BlockingBatcher.over(fake_batcher(engine))
        batcher.start()
        def call():
            with contextlib.suppress(BatcherClosedError):
                batcher.generate("x", max_tokens=300)
        threading.Thread(target=call, daemon=True).start()
        while not engine.plans:
            time.sleep(0.001)
    """,
    "sys.exit inside": """
        async def main():
            batcher = fake_batcher(engine)
            await batcher.start()
            sys.exit(0)
        asyncio.run(main())
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("how", EXITS)
def test_the_interpreter_exits_without_close(how: str) -> None:
    script = textwrap.dedent(
        """
        import asyncio, contextlib, sys
        from pybatcher import BatcherClosedError, BlockingBatcher
        from pybatcher.testing import FakeEngine, fake_batcher
        engine = FakeEngine()
        """
    ) + textwrap.dedent(EXITS[how])
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Fatal" not in ended.stderr

"""The batcher without asyncio: from one thread, from many, interrupted, dropped.

Its streams are in `test_streams.py`.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from batcher_helpers import PATIENCE, wait_for

from pybatcher import BatcherClosedError, BlockingBatcher, InvalidRequestError
from pybatcher.calls.threads import calls
from pybatcher.calls.threads.loop_thread import LoopThread
from pybatcher.scheduling import StepPlan
from pybatcher.testing import FakeEngine, fake_batcher

PROMPT = "Once upon a time"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
LONG = {"max_tokens": 8000, "ignore_eos": True}


def blocking(engine: FakeEngine | None = None, **options: object) -> BlockingBatcher:
    return BlockingBatcher.over(fake_batcher(engine, **options))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where the tests were started with it ignored (in the background)."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def ctrl_c() -> None:
    """To the main thread, as a terminal sends it."""
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


def until(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_all_methods() -> None:
    with blocking(chat_template=TEMPLATE) as batcher:
        completion = batcher.generate(PROMPT, max_tokens=20)
        stream = batcher.stream(PROMPT, max_tokens=20)
        assert stream.completion is None
        assert "".join(map(str, stream)) == completion.text
        assert stream.completion.token_ids == completion.token_ids
        messages = [{"role": "user", "content": PROMPT}]
        chat = batcher.chat(messages, max_tokens=5)
        pieces = list(batcher.stream_chat(messages, max_tokens=5))
        assert sum((piece.token_ids for piece in pieces), ()) == chat.token_ids
        tokens = batcher.tokenize(PROMPT)
        assert batcher.generate(tokens, max_tokens=20).text == completion.text
        assert batcher.detokenize(tokens) == f"<bos>{PROMPT}"
        assert batcher.tokenize(messages) == tokens[1:]
        assert batcher.statistics().completed == 5
        assert batcher.health().ok
        with pytest.raises(InvalidRequestError, match="max_tokens is 0"):
            batcher.generate(PROMPT, max_tokens=0)
    assert batcher.health().status == "closed"


def test_threads_share_forward_passes() -> None:
    engine = FakeEngine(n_parallel=16)
    with blocking(engine, batch_size=16, batch_timeout=PATIENCE) as batcher:
        with ThreadPoolExecutor(16) as pool:
            completions = list(
                pool.map(lambda i: batcher.generate(f"prompt {i:02}", max_tokens=1), range(16))
            )
        assert len({completion.token_ids for completion in completions}) > 1
    assert [len(plan.entries) for plan in engine.plans] == [16]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cancels_the_request() -> None:
    engine = FakeEngine(step_delay=0.001)

    def interrupt(plan: StepPlan) -> None:
        if len(engine.plans) == 10:
            ctrl_c()

    engine.before_step = interrupt
    with blocking(engine) as batcher:
        with pytest.raises(KeyboardInterrupt):
            batcher.generate(PROMPT, **LONG)
        until(lambda: batcher.statistics().cancelled == 1)
        assert len(batcher.generate(PROMPT, max_tokens=5, ignore_eos=True).token_ids) == 5


def test_life() -> None:
    batcher = blocking()
    assert batcher.health().status == "new"
    batcher.close()
    batcher.start()
    batcher.start()
    batcher.close()
    batcher.close()
    for call in (batcher.generate, batcher.stream):
        with pytest.raises(BatcherClosedError, match="closed"):
            list(call(PROMPT))


def test_the_first_call_starts_it() -> None:
    started = blocking()
    with started:
        expected = started.generate(PROMPT, max_tokens=5)
    for call in (
        lambda one: one.generate(PROMPT, max_tokens=5),
        lambda one: one.model_info(),
        lambda one: list(one.stream(PROMPT, max_tokens=5)),
        lambda one: one.tokenize(PROMPT),
    ):
        batcher = blocking()
        call(batcher)
        assert batcher.health().ok
        with batcher:
            assert batcher.generate(PROMPT, max_tokens=5).token_ids == expected.token_ids
        with pytest.raises(BatcherClosedError, match="closed"):
            batcher.generate(PROMPT)


def test_threads_whose_calls_come_first_share_one_start() -> None:
    engine = FakeEngine(n_parallel=16)
    batcher = blocking(engine, batch_size=16, batch_timeout=PATIENCE)
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda i: batcher.generate(f"prompt {i:02}", max_tokens=1), range(16)))
    assert len(made) == 16
    assert [len(plan.entries) for plan in engine.plans] == [16]
    batcher.close()


def test_a_first_call_that_cannot_start_it_says_why() -> None:
    batcher = blocking(FakeEngine(n_ctx=64), system_prompt="x" * 100)
    with pytest.raises(ValueError, match="system_prompt"):
        batcher.generate(PROMPT)
    with pytest.raises(BatcherClosedError, match="make another"):
        batcher.generate(PROMPT)
    assert not [t for t in threading.enumerate() if t.name == "pybatcher-loop"]


def test_a_program_that_closes_nothing_ends() -> None:
    code = """
from pybatcher import BlockingBatcher

batcher = BlockingBatcher()
print(len(batcher.generate("Once upon a time", max_tokens=3).token_ids))
stream = batcher.stream("Once upon a time", max_tokens=2000, ignore_eos=True)
print(len(next(stream).token_ids))
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (made.returncode, made.stdout.split(), made.stderr) == (0, ["3", "1"], "")


def test_a_start_that_fails_leaves_no_thread() -> None:
    engine = FakeEngine(n_ctx=64)
    batcher = blocking(engine, system_prompt="x" * 100)
    with pytest.raises(ValueError, match="system_prompt"):
        batcher.start()
    assert engine.closed
    assert not [t for t in threading.enumerate() if t.name == "pybatcher-loop"]


def test_close_without_drain_fails_who_waits_in_other_threads() -> None:
    engine = FakeEngine(step_delay=0.001)
    batcher = blocking(engine)
    batcher.start()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(batcher.generate, f"{i}", **LONG) for i in range(4)]
        until(lambda: batcher.statistics().generated_tokens > 4)
        batcher.close(drain=False)
        for future in futures:
            with pytest.raises(BatcherClosedError):
                future.result(PATIENCE)


@pytest.mark.slow
def test_a_batcher_that_is_dropped_closes_itself() -> None:
    engine = FakeEngine()
    batcher = blocking(engine)
    batcher.start()
    batcher.generate(PROMPT, max_tokens=3)
    del batcher
    gc.collect()
    until(lambda: engine.closed)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_is_told_so() -> None:
    with blocking() as batcher:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                batcher.generate(PROMPT)
            except BatcherClosedError as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            assert "is a fork of it" in pipe.read()
        os.waitpid(child, 0)


@pytest.mark.usefixtures("interruptible")
def test_the_callers_thread_is_free_to_be_interrupted_while_a_step_hangs() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def block(plan: StepPlan) -> None:
        inside.set()
        wait_for(go_on)

    with blocking(FakeEngine(before_step=block)) as batcher:
        interrupter = threading.Thread(
            target=lambda: (
                wait_for(inside),
                ctrl_c(),
            )
        )
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            batcher.generate(PROMPT, **LONG)
        interrupter.join()
        go_on.set()


def test_threads_that_start_it_at_the_same_time_share_one_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[LoopThread] = []
    second_has_come = threading.Event()

    class Slow(LoopThread):
        def __init__(self, name: str, *, owner: str) -> None:
            made.append(self)
            if len(made) > 1:
                second_has_come.set()
            wait_for(second_has_come)
            super().__init__(name, owner=owner)

    class Noting:
        def __init__(self) -> None:
            self._lock, self._counting = threading.Lock(), threading.Lock()
            self._comers = 0

        def __enter__(self) -> None:
            with self._counting:
                self._comers += 1
                if self._comers == 2:
                    second_has_come.set()
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    monkeypatch.setattr(calls, "LoopThread", Slow)
    batcher = blocking()
    batcher._starting = Noting()  # type: ignore[assignment]
    threads = [threading.Thread(target=batcher.start, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_for(second_has_come)
    assert len(made) == 1
    for thread in threads:
        thread.join(PATIENCE)
    assert batcher.generate(PROMPT, max_tokens=3).token_ids
    batcher.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_leaves_with_its_own_status() -> None:
    """The batcher of its parent is none of its own: there is nothing to close."""
    code = """
import os, sys
from pybatcher.testing import fake_batcher
from pybatcher import BlockingBatcher

def child():
    if (pid := os.fork()) == 0:
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

with BlockingBatcher.over(fake_batcher()) as batcher:
    child()
    print(batcher.generate("a", max_tokens=2).usage.completion_tokens)
"""
    command = [sys.executable, "-c", code]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert made.stdout.split() == ["7", "2"], made.stderr
    noise = [line for line in made.stderr.splitlines() if "DeprecationWarning" not in line]
    assert not any("Task" in line or "ignored" in line for line in noise), made.stderr

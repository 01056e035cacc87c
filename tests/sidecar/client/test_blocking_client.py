"""The client without asyncio: from one thread, from many, interrupted, dropped."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from batcher_helpers import PATIENCE
from small_sidecar import LONG, MESSAGES, TEMPLATE, SmallSidecar

from pybatcher import (
    BatcherClosedError,
    BlockingClient,
    Client,
    ConfigError,
    ConnectionLostError,
    InvalidRequestError,
)
from pybatcher.calls.threads.loop_thread import LoopThread
from pybatcher.sidecar.protocol.connection import Limits
from pybatcher.testing import FakeEngine, fake_batcher

PROMPT = "Once upon a time"


class Elsewhere:
    """A sidecar on a thread of its own, as the client's is in another process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.thread = LoopThread("pybatcher-sidecar")
        engine = FakeEngine(step_delay=0.001, n_parallel=16)
        self.batcher = fake_batcher(engine, chat_template=TEMPLATE, max_prefixes=2)
        self.thread.call(self._start())

    async def _start(self) -> None:
        await self.batcher.start()
        self.sidecar = SmallSidecar(self.path, self.batcher, Limits())
        await self.sidecar.listen()

    async def _close(self) -> None:
        await self.sidecar.close()
        await self.batcher.close()

    def close(self) -> None:
        self.thread.call(self._close())
        self.thread.stop()

    def until(self, condition: Any) -> None:
        """Wait until something is so, as its own thread sees it."""

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE):
                while not condition():  # noqa: ASYNC110 - what is waited for has no event
                    await asyncio.sleep(0.001)

        self.thread.call(wait())


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    one = Elsewhere(tmp_path / "batcher.sock")
    yield one
    one.close()


def test_all_methods(elsewhere: Elsewhere) -> None:
    with BlockingClient(elsewhere.path) as client:
        completion = client.generate(PROMPT, max_tokens=20)
        stream = client.stream(PROMPT, max_tokens=20)
        assert "".join(map(str, stream)) == completion.text
        assert stream.completion.token_ids == completion.token_ids
        chat = client.chat(MESSAGES, max_tokens=5)
        pieces = list(client.stream_chat(MESSAGES, max_tokens=5))
        assert sum((piece.token_ids for piece in pieces), ()) == chat.token_ids
        assert client.detokenize(client.tokenize(MESSAGES)) == PROMPT
        (score,) = client.score(PROMPT, ["x"])
        assert score.logprob < 0
        (embedding,) = client.embed([PROMPT])
        assert embedding.vector.ndim == 1
        assert client.add_prefix(PROMPT, name="begin") in client.prefixes()
        client.remove_prefix("begin")
        assert client.statistics().completed >= 6
        assert client.health().ok
        assert client.model_name == "fake"
        assert client.limits["max_frame"] > 0
        with pytest.raises(InvalidRequestError, match="reload"):
            client.reload(n_batch=64)
        with pytest.raises(InvalidRequestError, match="max_tokens is 0"):
            client.generate(PROMPT, max_tokens=0)
    assert client.health().status == "closed"


def test_threads_share_the_connection(elsewhere: Elsewhere) -> None:
    with BlockingClient(elsewhere.path) as client, ThreadPoolExecutor(16) as pool:
        sampled = {"max_tokens": 9, "temperature": 1.0}
        here = list(pool.map(lambda i: client.generate(PROMPT, seed=i, **sampled), range(32)))
        batcher = elsewhere.batcher
        for i, completion in enumerate(here):
            there = elsewhere.thread.call(batcher.generate(PROMPT, seed=i, **sampled))
            assert completion.token_ids == there.token_ids
        assert elsewhere.sidecar.n_connections == 1


def test_events_come_on_its_own_thread(elsewhere: Elsewhere) -> None:
    names, came = set(), threading.Event()

    def hear(event: object) -> None:
        names.add(threading.current_thread().name)
        came.set()

    with BlockingClient(elsewhere.path) as client:
        detach = client.attach(hear)
        elsewhere.until(lambda: elsewhere.batcher._telemetry.has_handlers)
        client.generate(PROMPT, max_tokens=2)
        assert came.wait(PATIENCE)
        detach()
        elsewhere.until(lambda: not elsewhere.batcher._telemetry.has_handlers)
    assert names == {"pybatcher-loop"}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_stream_that_is_left_is_cancelled(elsewhere: Elsewhere, how: str) -> None:
    with BlockingClient(elsewhere.path) as client:
        stream = client.stream(PROMPT, **LONG)
        next(stream)
        if how == "close":
            stream.close()
        del stream
        gc.collect()
        elsewhere.until(lambda: elsewhere.batcher.statistics().cancelled == 1)


def test_life(elsewhere: Elsewhere) -> None:
    client = BlockingClient(elsewhere.path)
    assert client.health().status == "new"
    assert client.statistics().completed == 0  # the first call starts the client
    assert client.health().status == "ready"
    client.start()
    client.start()
    client.close()
    client.close()
    for call in (client.statistics, client.prefixes, lambda: client.generate(PROMPT)):
        with pytest.raises(BatcherClosedError, match="the client is closed"):
            call()
    with pytest.raises(ConfigError, match="connect_timeout"):
        BlockingClient(elsewhere.path, connect_timeout=-1)


def test_a_sidecar_that_is_gone_is_noticed(elsewhere: Elsewhere) -> None:
    with BlockingClient(elsewhere.path) as client:
        client._batcher._running_service()._connect_timeout = 0.1  # nobody will be there
        elsewhere.thread.call(elsewhere.sidecar.close())
        for call in (client.health, client.statistics, lambda: client.generate(PROMPT)):
            with pytest.raises(ConnectionLostError):
                call()
        assert client.model_name == "fake"


def test_over_a_client_that_was_not_started(elsewhere: Elsewhere) -> None:
    with BlockingClient.over(Client(elsewhere.path, idempotent=True)) as client:
        assert client.generate(PROMPT, max_tokens=3, ignore_eos=True).text


def test_a_start_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    client = BlockingClient(tmp_path / "nobody.sock", connect_timeout=0.1)
    with pytest.raises(ConnectionLostError, match=r"nobody\.sock"):
        client.start()
    assert not [t for t in threading.enumerate() if t.name == "pybatcher-loop"]


def test_a_client_that_is_dropped_hangs_up(elsewhere: Elsewhere) -> None:
    client = BlockingClient(elsewhere.path)
    client.start()
    client.generate(PROMPT, max_tokens=3)
    del client
    gc.collect()
    elsewhere.until(lambda: not elsewhere.sidecar.sessions)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_is_told_so(elsewhere: Elsewhere) -> None:
    with BlockingClient(elsewhere.path) as client:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                client.generate(PROMPT)
            except BatcherClosedError as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            assert "make a client in each process" in pipe.read()
        os.waitpid(child, 0)
        assert client.generate(PROMPT, max_tokens=2, ignore_eos=True).token_ids

"""Workers die, hang and abort under 32 streams: nobody notices more than a pause."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from serving_doubles import Serving, is_running, serving, start_serving, wait_until_ready

from bench.serving.chaos import reproducible_part, stream_request
from bench.serving.faults import inject
from pybatcher import Batcher, Client, Completion, EngineFailedError, Piece, PybatcherError
from pybatcher.models import tiny_path

N_STREAMS = 32
MAX_TOKENS = 120
OPTIONS = ("--n-ctx", "16384", "--n-parallel", "32", "--hang-timeout", "2.0")
BATCHER_OPTIONS = {"n_threads": 1, "n_ctx": 16384, "n_parallel": 32}


@pytest.fixture(scope="module")
def undisturbed() -> list[tuple[Any, ...]]:
    async def generate() -> list[Completion]:
        async with Batcher(**BATCHER_OPTIONS) as batcher:
            calls = [stream_request(i, MAX_TOKENS) for i in range(N_STREAMS)]
            return await asyncio.gather(*(batcher.generate(p, **params) for p, params in calls))

    return [reproducible_part(completion) for completion in asyncio.run(generate())]


class Listeners:
    """Callers that ask for the same streams over and over and compare what comes."""

    def __init__(self, client: Client, expected: list[tuple[Any, ...]]) -> None:
        self._client = client
        self._expected = expected
        self.rounds = 0
        self.tokens = 0
        self.is_over = False
        self._more = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for i in range(N_STREAMS):
                group.create_task(self._listen(i))

    async def _listen(self, i: int) -> None:
        prompt, params = stream_request(i, MAX_TOKENS)
        while not self.is_over:
            pieces: list[Piece] = []
            stream = self._client.stream(prompt, **params)
            async for piece in stream:
                pieces.append(piece)
                self.tokens += len(piece.token_ids)
                self._more.set()
            completion = stream.completion
            assert completion is not None
            assert reproducible_part(completion) == self._expected[i]
            assert "".join(piece.text for piece in pieces) == completion.text
            assert sum((piece.token_ids for piece in pieces), ()) == completion.token_ids
            assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
            assert len(completion.timeline.token_times) == len(completion.token_ids)
            self.rounds += 1

    async def some_tokens(self, n: int) -> None:
        """Wait until so many more have come: a worker is at it."""
        enough = self.tokens + n
        while self.tokens < enough:
            self._more.clear()
            await self._more.wait()


async def disturb(
    running: Serving, expected: list[tuple[Any, ...]], faults: list[str], rng: random.Random
) -> Listeners:
    async with Client(running.socket) as client:
        listeners = Listeners(client, expected)
        listening = asyncio.ensure_future(listeners.run())
        try:
            for n_blows, fault in enumerate(faults, 1):
                waiting = asyncio.ensure_future(listeners.some_tokens(rng.randrange(1, 2000)))
                await asyncio.wait({listening, waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if listening.done():
                    break
                (pid,) = (await client.statistics()).worker_pids
                inject(fault, pid)
                while (await client.statistics()).worker_restarts < n_blows:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            listeners.is_over = True
            await listening
        statistics = await client.statistics()
        assert statistics.worker_restarts == len(faults)
        assert statistics.in_flight == 0
    return listeners


async def test_streams_go_on_over_kills_stops_and_aborts(
    tmp_path: Path, undisturbed: list[tuple[Any, ...]]
) -> None:
    faults = ["SIGKILL", "SIGSTOP", "SIGABRT", "SIGSEGV", "SIGKILL"]
    with serving(tmp_path, *OPTIONS, "--max-worker-restarts", "1000") as running:
        listeners = await disturb(running, undisturbed, faults, random.Random(1))
        said = running.said()
    assert listeners.rounds >= N_STREAMS
    assert said.count("SIGKILL") >= 3  # by the watchdog for SIGSTOP
    assert "SIGABRT" in said
    assert "hang_timeout" in said


def _of_another_rope(path: Path) -> None:
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "rope_theta": 50.0, "rope_parameters": None}))


def _of_other_texts(path: Path) -> None:
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = [text for text in vocabulary if text.isalpha()][:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(tokenizer))


def _same(path: Path) -> None:
    path.chmod(0o640)
    path.with_name("a second name").hardlink_to(path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", _of_another_rope),
        ("tokenizer.json", _of_other_texts),
        ("model.safetensors", _same),
        ("tokenizer.json", _same),
    ],
)
async def test_a_stream_goes_on_after_a_death_with_the_same_model_only(
    tmp_path: Path,
    undisturbed: list[tuple[Any, ...]],
    name: str,
    change: Callable[[Path], None],
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_path(), model)
    prompt, params = stream_request(2, MAX_TOKENS)
    with serving(tmp_path, "--model", str(model), *OPTIONS) as running:
        async with Client(running.socket) as client:
            (pid,) = (await client.statistics()).worker_pids
            stream = client.stream(prompt, **params)
            await anext(stream)
            os.kill(pid, signal.SIGSTOP)  # so that the stream does not end before
            change(model / name)
            os.kill(pid, signal.SIGKILL)
            if change is _same:
                assert [piece async for piece in stream]
                assert stream.completion is not None
                assert reproducible_part(stream.completion) == undisturbed[2]
                return
            with pytest.raises(EngineFailedError, match="the model's files were changed"):
                async for _ in stream:
                    pass
            assert (await client.generate("Once", max_tokens=2)).token_ids  # of the other model


async def test_past_the_intensity_everybody_is_told_and_the_server_exits(tmp_path: Path) -> None:
    running = start_serving(tmp_path, *OPTIONS, "--max-worker-restarts", "1")
    async with Client(running.socket) as client:

        async def kill_serving_workers() -> None:
            async for _ in client.stream("Once", max_tokens=4000, ignore_eos=True):
                with suppress(PybatcherError):  # the server exits meanwhile
                    for pid in (await client.statistics()).worker_pids:
                        if is_running(pid):
                            os.kill(pid, signal.SIGKILL)

        # the death of a worker that is being opened, and sends no token, does not count
        with pytest.raises(EngineFailedError, match="max_worker_restarts"):
            await kill_serving_workers()
    assert running.wait() == 1
    assert not running.socket.exists()


async def test_a_worker_ends_with_its_front(tmp_path: Path) -> None:
    running = start_serving(tmp_path, *OPTIONS)
    (pid,) = running.worker_pids()
    running.process.kill()
    running.wait()
    end = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_clients_that_come_back_go_on_with_the_same_tokens(
    tmp_path: Path, undisturbed: list[tuple[Any, ...]]
) -> None:
    """The front dies, twice, and another takes its place: for idempotent clients a pause too."""
    running = start_serving(tmp_path, *OPTIONS)
    async with Client(running.socket, idempotent=True, connect_timeout=60.0) as client:
        listeners = Listeners(client, undisturbed)
        listening = asyncio.ensure_future(listeners.run())
        for _ in range(2):
            await listeners.some_tokens(1500)
            running.process.kill()
            running.wait()
            running = start_serving(tmp_path, *OPTIONS, wait=False)
        listeners.is_over = True
        await listening
    # All that the listeners waited for may have come from the one before.
    await asyncio.to_thread(wait_until_ready, running)
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0
    assert listeners.rounds >= N_STREAMS

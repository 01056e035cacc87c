"""`serve --device cuda` on an emulated GPU: workers are killed and lose their GPU under streams.

An error that CUDA does not recover from is planted in the driver of the worker: the file that
PYBATCHER_EMULATED_FAILURE names holds a function, in how many calls from now, and the error code.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from serving_doubles import serving

from pybatcher import Batcher, Client, Completion
from pybatcher.testing.checkpoints import make_checkpoint

pytestmark = pytest.mark.emulator  # faults are planted in its driver, or its memory is known

N_STREAMS = 4
ILLEGAL_ADDRESS, LAUNCH_FAILED, OUT_OF_MEMORY = 700, 719, 2
OPTIONS = {"device": "cuda", "n_ctx": 1024, "n_parallel": 4, "block_size": 16}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), "llama", num_hidden_layers=2)


def request(i: int) -> tuple[list[int], dict[str, Any]]:
    """Greedy and sampled in turn."""
    prompt = [(17 * i + 3 * j) % 380 for j in range(8 + 9 * i)]
    sampling = {"temperature": 1.1 * (i % 2), "seed": i, "logprobs": 2}
    return prompt, {"max_tokens": 40, "ignore_eos": True, **sampling}


@pytest.fixture(scope="module")
def undisturbed(checkpoint: Path) -> list[object]:
    async def one_by_one() -> list[Completion]:
        async with Batcher(checkpoint, n_threads=1, **OPTIONS) as batcher:
            calls = [request(i) for i in range(N_STREAMS)]
            return [await batcher.generate(prompt, **params) for prompt, params in calls]

    return [output(completion) for completion in asyncio.run(one_by_one())]


def output(completion: Completion) -> object:
    return completion.token_ids, completion.finish_reason, completion.logprobs


class Listeners:
    """Ask for the same streams over and over, until told that it is over; compare what comes."""

    def __init__(self, client: Client, expected: list[object]) -> None:
        self._client, self._expected = client, expected
        self._piece = asyncio.Event()
        self._is_over = False

    async def _listen(self, i: int) -> None:
        prompt, params = request(i)
        while not self._is_over:
            token_ids: tuple[int, ...] = ()
            stream = self._client.stream(prompt, **params)
            async for piece in stream:
                token_ids += piece.token_ids
                self._piece.set()
            assert stream.completion is not None
            assert stream.completion.token_ids == token_ids
            assert output(stream.completion) == self._expected[i]

    async def pieces(self, n: int) -> None:
        """Wait until tokens have come so many times: streams are under way."""
        for _ in range(n):
            self._piece.clear()
            await self._piece.wait()

    async def until(self, disturbed: Any) -> None:
        """Listen until the coroutine has ended; read the last streams to their end."""
        async with asyncio.TaskGroup() as group:
            for i in range(N_STREAMS):
                group.create_task(self._listen(i))
            await disturbed
            self._is_over = True


async def other_worker(client: Client, pid: int) -> int:
    """Wait until another worker than that serves; its pid."""
    while True:
        pids = (await client.statistics()).worker_pids
        if pids and pids[0] != pid:
            return pids[0]
        await asyncio.sleep(0.02)


def serve_emulated(tmp_path: Path, checkpoint: Path) -> Any:
    arguments = ["--model", str(checkpoint)]
    for name, value in OPTIONS.items():
        arguments += ["--" + name.replace("_", "-"), str(value)]
    environment = {**os.environ, "PYBATCHER_EMULATED_FAILURE": str(tmp_path / "failure")}
    return serving(tmp_path, *arguments, env=environment)


def plant(tmp_path: Path, failure: str) -> Path:
    """The next worker that waits for its GPU takes the failure away, and has it."""
    whole = tmp_path / "failure.part"
    whole.write_text(failure)
    return whole.rename(tmp_path / "failure")


async def test_streams_outlive_workers_that_are_killed(
    tmp_path: Path, checkpoint: Path, undisturbed: list[object]
) -> None:
    with serve_emulated(tmp_path, checkpoint) as running:
        async with Client(running.socket) as client:
            listeners = Listeners(client, undisturbed)

            async def kill_two() -> None:
                for n_pieces in (3, 20):
                    await listeners.pieces(n_pieces)
                    (pid,) = (await client.statistics()).worker_pids
                    os.kill(pid, signal.SIGKILL)
                    await other_worker(client, pid)

            await listeners.until(kill_two())
            assert (await client.statistics()).worker_restarts == 2


async def test_streams_outlive_workers_that_lose_their_gpu(
    tmp_path: Path, checkpoint: Path, undisturbed: list[object]
) -> None:
    """The process cannot use CUDA any more: it has to end, and another one to go on."""
    with serve_emulated(tmp_path, checkpoint) as running:
        async with Client(running.socket) as client:
            listeners = Listeners(client, undisturbed)

            async def lose_two() -> None:
                for nth, code in ((1, ILLEGAL_ADDRESS), (5, LAUNCH_FAILED)):
                    await listeners.pieces(5)
                    (pid,) = (await client.statistics()).worker_pids
                    planted = plant(tmp_path, f"cuStreamQuery {nth} {code}")
                    await other_worker(client, pid)
                    assert not planted.exists()

            await listeners.until(lose_two())
            assert (await client.statistics()).worker_restarts == 2
        said = running.said()
    assert said.count("start a new one") == 2
    assert "cuStreamQuery gave 700 (CUDA_ERROR_ILLEGAL_ADDRESS" in said
    assert "cuStreamQuery gave 719" in said


async def test_an_error_that_cuda_recovers_from_costs_a_restart_in_place(
    tmp_path: Path, checkpoint: Path, undisturbed: list[object]
) -> None:
    with serve_emulated(tmp_path, checkpoint) as running:
        async with Client(running.socket) as client:
            listeners = Listeners(client, undisturbed)

            async def fail_once() -> None:
                await listeners.pieces(5)
                plant(tmp_path, f"cuStreamQuery 3 {OUT_OF_MEMORY}")
                counts = await client.statistics()
                while not counts.restarts + counts.worker_restarts:
                    await asyncio.sleep(0.02)
                    counts = await client.statistics()

            await listeners.until(fail_once())
            statistics = await client.statistics()
            assert (statistics.restarts, statistics.worker_restarts) == (1, 0)

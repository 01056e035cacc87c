"""Two replicas of a real Ray on this machine: killed, replaced, cancelled, routed by prefixes.

`make test-ray-quick` has those that are not marked slow, for CI.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import runpy
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import pybatcher
import pybatcher.ray
from pybatcher import Batcher, Completion
from pybatcher.calls.backpressure import CURRENT_BACKPRESSURE, Backpressure
from pybatcher.errors import (
    DeadlineExceededError,
    EngineFailedError,
    InvalidRequestError,
    RequestTooLongError,
)
from pybatcher.ray.handle_replicas import HandleReplicas
from pybatcher.ray.replicas import AHEAD, Routing
from tests.suites.ray.conftest import NAME, OPTIONS, replica_pids

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]

N_STREAMS = 16
PROMPTS = [f"{i} children went to the forest and" for i in range(N_STREAMS)]
LONG: dict[str, Any] = {"max_tokens": 500, "ignore_eos": True, "temperature": 1.0}


async def alone() -> list[Completion]:
    """The outputs of one batcher in this process."""
    async with Batcher(n_ctx=32768, n_threads=2) as batcher:
        return [await batcher.generate(prompt, seed=i, **LONG) for i, prompt in enumerate(PROMPTS)]


def cpu_ticks(pid: int) -> int:
    """How long a process has computed."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


async def until(condition: Callable[[], Any], what: str) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.05)


class Reader:
    """A stream that is read to its end; `begun` after its first tokens."""

    def __init__(self, batcher: pybatcher.AnyBatcher, i: int) -> None:
        self.begun = asyncio.Event()
        self.texts: list[str] = []
        self.stream = batcher.stream(PROMPTS[i], seed=i, **LONG)

    async def read(self) -> Completion:
        async for piece in self.stream:
            self.texts.append(piece.text)
            if len(self.texts) >= 20:
                self.begun.set()
        assert self.stream.completion is not None
        return self.stream.completion


@pytest.mark.parametrize("n_killed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_streams_go_on_with_the_same_tokens_when_replicas_are_killed(
    handle: Any, n_killed: int, caplog: pytest.LogCaptureFixture
) -> None:
    expected = await alone()
    await until(lambda: len(replica_pids()) == 2, "both replicas are there")
    before = {pid: cpu_ticks(pid) for pid in replica_pids()}
    async with pybatcher.ray.batcher(handle) as batcher:
        readers = [Reader(batcher, i) for i in range(N_STREAMS)]
        reads = [asyncio.ensure_future(reader.read()) for reader in readers]
        for reader in readers:
            await reader.begun.wait()
        n_left = sum(not read.done() for read in reads)
        # First the one that computes: another that has just started may have no stream yet.
        busiest = sorted(before, key=lambda pid: before[pid] - cpu_ticks(pid))
        with caplog.at_level(logging.WARNING, "pybatcher"):
            for pid in busiest[:n_killed]:
                os.kill(pid, signal.SIGKILL)
            made = await asyncio.gather(*reads)
    assert [one.token_ids for one in made] == [one.token_ids for one in expected]
    assert [one.text for one in made] == [one.text for one in expected]
    assert ["".join(one.texts) for one in readers] == [one.text for one in expected]
    assert all(one.usage.completion_tokens == LONG["max_tokens"] for one in made)
    went_on = sum("goes on with another" in one.getMessage() for one in caplog.records)
    print(f"{n_killed} killed under {n_left} streams; {went_on} went on elsewhere")
    assert went_on > 0


async def test_a_chat_over_http_goes_on_when_its_replica_is_killed(deployed: str) -> None:
    body = {
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "stream": True,
        "seed": 3,
        **LONG,
    }
    texts = []
    for is_killed in (False, True):
        await until(lambda: len(replica_pids()) == 2, "both replicas are there")
        parts: list[str] = []
        async with (
            httpx.AsyncClient(timeout=300) as client,
            client.stream("POST", f"{deployed}/v1/chat/completions", json=body) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    assert "error" not in chunk, chunk
                    parts += [one["delta"].get("content") or "" for one in chunk["choices"]]
                    if is_killed and len(parts) == 30:
                        for pid in replica_pids():  # whichever has it
                            os.kill(pid, signal.SIGKILL)
        texts.append("".join(parts))
    assert len(texts[0]) > 500
    assert texts[1] == texts[0]


async def test_every_endpoint_answers(deployed: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    async with httpx.AsyncClient(base_url=deployed, timeout=300) as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
        asked: list[tuple[str, dict[str, Any]]] = [
            ("/v1/chat/completions", {"messages": messages, "max_tokens": 4}),
            ("/v1/completions", {"prompt": ["Once", "Twice"], "max_tokens": 4, "n": 2}),
            ("/v1/responses", {"model": model["id"], "input": "Hi", "max_output_tokens": 16}),
            ("/v1/messages", {"model": model["id"], "messages": messages, "max_tokens": 4}),
            ("/v1/embeddings", {"input": ["a cat", "a dog"]}),
            ("/v1/rerank", {"query": "a cat", "documents": ["a dog", "a cat"]}),
            ("/tokenize", {"prompt": "Once"}),
        ]
        for path, body in asked:
            found = await client.post(path, json=body)
            assert found.status_code == 200, (path, found.text)
        assert (await client.get("/health")).status_code == 200
        metrics = await client.get("/metrics")
        assert 'pybatcher:time_to_first_token_seconds_count{model_name="tiny"} ' in metrics.text
        refused = await client.post("/v1/completions", json={"prompt": "x", "temperature": -1})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "temperature"


@pytest.mark.slow
async def test_errors_are_typed_over_the_handle(handle: Any) -> None:
    async with pybatcher.ray.batcher(handle) as batcher:
        with pytest.raises(InvalidRequestError, match="temperature is -1"):
            await batcher.generate("x", temperature=-1)
        with pytest.raises(RequestTooLongError):
            await batcher.generate([5] * 40_000, max_tokens=1)
        with pytest.raises(DeadlineExceededError):
            await batcher.generate(PROMPTS[0], timeout=1e-6)
        with pytest.raises(InvalidRequestError, match="no prefix of this namespace"):
            await batcher.remove_prefix("of another name")
    told = HandleReplicas(handle).stream(
        "generate", [[5, 6], {"output": [7]}], Routing(fingerprint="of another model")
    )
    ((name, error),) = await anext(told)
    assert (name, error["type"]) == ("error", EngineFailedError.__name__)


async def test_an_output_that_nobody_reads_leaves_its_replica_until_it_is_read(
    handle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybatcher.ray.routed_output._PATIENCE", 0.0)
    long = {**LONG, "max_tokens": 1900, "seed": 0}
    async with Batcher(n_ctx=32768, n_threads=2) as one:
        expected = await one.generate(PROMPTS[0], **long)
    backpressure = Backpressure(16)
    CURRENT_BACKPRESSURE.set(backpressure)
    async with pybatcher.ray.batcher(handle) as batcher:
        before = (await batcher.statistics()).generated_tokens
        stream = batcher.stream(PROMPTS[0], **long)
        text = (await anext(stream)).text
        await until(lambda: backpressure.is_paused, "nobody reads")
        async with asyncio.timeout(60):
            while (await batcher.statistics()).running:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await batcher.statistics()).generated_tokens - before < 1900
        async for piece in stream:
            text += piece.text
    assert text == expected.text
    assert stream.completion is not None
    assert stream.completion.token_ids == expected.token_ids


async def test_full_replicas_answer_questions(handle: Any, deployed: str) -> None:
    most = 2 * AHEAD * OPTIONS["n_parallel"]
    async with pybatcher.ray.batcher(handle) as batcher:
        long = {**LONG, "max_tokens": 1900}
        calls = [
            asyncio.create_task(batcher.generate("Once", seed=i, **long)) for i in range(most + 40)
        ]

        async def n_inside() -> int:
            async with asyncio.timeout(5):
                counts = await batcher.statistics()
            return counts.queued + counts.running

        async with asyncio.timeout(60):
            while await n_inside() < most - 8:  # noqa: ASYNC110 - some may have ended
                await asyncio.sleep(0.1)
        async with asyncio.timeout(5), httpx.AsyncClient(base_url=deployed) as client:
            assert (await batcher.health()).ok
            assert (await client.get("/health")).status_code == 200
            assert await batcher.tokenize("Once")
        assert most - 8 <= await n_inside() <= most + 8
        for call in calls:
            call.cancel()
        async with asyncio.timeout(60):
            while await n_inside():  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_cancelled_stream_frees_its_sequence(handle: Any) -> None:
    async with pybatcher.ray.batcher(handle) as batcher:
        before = await batcher.statistics()
        stream = batcher.stream(PROMPTS[0], max_tokens=1900, ignore_eos=True)
        for _ in range(5):
            await anext(stream)
        assert (await batcher.statistics()).running == 1
        stream.close()
        async with asyncio.timeout(60):
            while (await batcher.statistics()).running:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        after = await batcher.statistics()
        assert after.cancelled - before.cancelled == 1
        assert after.generated_tokens - before.generated_tokens < 1900


# -- routing --------------------------------------------------------------------------------------


async def cached_share(handle: Any) -> float:
    """Serve eight beginnings of 320 tokens, 12 times each; return the share found cached."""
    rng = random.Random(0)
    beginnings = [[rng.randrange(300, 2000) for _ in range(320)] for _ in range(8)]
    asked = beginnings * 12
    rng.shuffle(asked)
    room = asyncio.Semaphore(4)
    async with pybatcher.ray.batcher(handle) as batcher:

        async def one(beginning: list[int]) -> Completion:
            async with room:
                own = [rng.randrange(300, 2000) for _ in range(16)]
                return await batcher.generate(beginning + own, max_tokens=4, temperature=0.0)

        made = await asyncio.gather(*map(one, asked))
    prompts = sum(len(prompt) + 16 for prompt in asked)
    return sum(one.usage.cached_tokens for one in made) / prompts


@pytest.mark.slow
async def test_the_router_finds_more_of_prompts_cached_than_that_of_ray(url: str) -> None:
    from ray import serve

    from pybatcher.ray.served import ServedReplica

    # Room for six of the eight beginnings in a replica, beside what runs.
    engine = {"n_ctx": 2560, "n_parallel": 4, "n_threads": 1}
    plain = serve.deployment(ServedReplica, name="plain", num_replicas=2).bind(None, engine)
    own = pybatcher.ray.deployment(name="own", http=False, num_replicas=2, **engine)
    shares = {}
    for name, app in (("plain", plain), ("own", own)):
        handle = serve.run(app, name=name, route_prefix=None)
        shares[name] = await cached_share(handle)
        serve.delete(name)
    print(f"of the prompts' tokens found cached: {shares}")
    assert shares["own"] > 0.75
    assert shares["own"] > shares["plain"] + 0.03


# -- more and other replicas ----------------------------------------------------------------------


@pytest.mark.slow
async def test_an_upgrade_loses_no_stream(deployed: str, handle: Any) -> None:
    from ray import serve

    expected = await alone()
    before = set(replica_pids())
    upgraded = False

    def upgrade() -> None:
        app = pybatcher.ray.deployment(name=NAME, num_replicas=2, **{**OPTIONS, "n_batch": 96})
        serve.run(app, name=NAME, route_prefix="/")

    async def keep_asking(batcher: pybatcher.AnyBatcher, i: int) -> int:
        n_asked = 0
        while not (upgraded and n_asked):
            reader = Reader(batcher, i)
            assert (await reader.read()).token_ids == expected[i].token_ids
            n_asked += 1
        return n_asked

    async with pybatcher.ray.batcher(handle) as batcher:
        asking = [asyncio.ensure_future(keep_asking(batcher, i)) for i in range(4)]
        await asyncio.sleep(1)
        await asyncio.to_thread(upgrade)
        upgraded = True
        n_asked = await asyncio.gather(*asking)
    print(f"{sum(n_asked)} streams over an upgrade")
    await until(lambda: not before & set(replica_pids()), "the old replicas are gone")


@pytest.mark.slow
async def test_tokens_that_wait_bring_another_replica(url: str) -> None:
    from ray import serve

    scale = {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_queued_tokens": 200,
        "upscale_delay_s": 1.0,
        "metrics_interval_s": 0.5,
        "look_back_period_s": 2.0,
    }
    engine = {"n_ctx": 32768, "n_parallel": 2, "n_threads": 1}
    app = pybatcher.ray.deployment(name="scaled", http=False, autoscaling=scale, **engine)
    handle = serve.run(app, name="scaled", route_prefix=None)

    def n_replicas() -> int:  # those that start, too, which takes minutes on a busy machine
        status = serve.status().applications["scaled"].deployments["scaled"]
        return sum(status.replica_states.values())

    assert n_replicas() == 1
    async with pybatcher.ray.batcher(handle) as batcher:
        long = {"max_tokens": 1500, "ignore_eos": True}

        async def keep_busy() -> None:
            while True:
                await batcher.generate("Once upon a time " * 20, **long)

        busy = [asyncio.ensure_future(keep_busy()) for _ in range(8)]
        try:
            async with asyncio.timeout(300):
                while await asyncio.to_thread(n_replicas) < 2:
                    for ended in (one for one in busy if one.done()):
                        ended.result()  # an error, and no load
                    await asyncio.sleep(0.5)
        finally:
            for one in busy:
                one.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
    serve.delete("scaled")


def test_the_example_is_an_application() -> None:
    from ray import serve

    path = Path(__file__).resolve().parents[3] / "examples" / "ray_app.py"
    assert isinstance(runpy.run_path(str(path))["app"], serve.Application)

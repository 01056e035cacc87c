"""Streams on an emulated GPU under random schedules: the same ids and log-probabilities as alone.

Each way brings about what it is named for (preemptions, chunks, hits in the prefix index, drafts,
failures of the engine), with the other options drawn at random; the counts say that it did.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from emulated_engine import BLOCK, RECURRENT, few_layers

from pybatcher import Batcher, BatcherStatistics, Completion, SamplingParams
from pybatcher.params.config import EngineConfig
from pybatcher.scheduling.step_time import StepCost
from pybatcher.serving.runtime import Runtime, open_checkpoint
from pybatcher.testing import FailStep, Fault, FaultyEngine
from pybatcher.testing.checkpoints import make_checkpoint

N_STREAMS = 12
LONG = [7 * i % 380 for i in range(300)]  # past one segment of attention, and of many chunks
SYSTEM = [(5 * j + 3) % 380 for j in range(2 * BLOCK + 3)]  # what a third of the prompts begin with


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def architecture(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def checkpoint(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_checkpoint(folder, architecture, **few_layers(architecture))


def request(i: int) -> tuple[list[int], SamplingParams]:
    """Greedy, sampled, and greedy that repeats itself, in turn; some prompts are there twice."""
    prompt = [(11 * (i - i % 4 // 3) + j) % 380 for j in range(6 + 3 * (i % 5))]
    if i % 3 == 0:
        prompt = [*SYSTEM, *prompt]
    params = SamplingParams(
        max_tokens=10 + i % 7,
        temperature=0.9 * (i % 3 == 1),
        seed=i,
        logprobs=2,
        logit_bias={9: 1e3, 10: 1e3} if i % 3 == 2 else None,  # drafts are found and accepted
        ignore_eos=True,
    )
    return prompt, params


async def serve(
    checkpoint: Path,
    rng: random.Random,
    options: dict[str, Any],
    *,
    warm: bool = False,
    faults: tuple[Fault, ...] = (),
) -> tuple[list[Completion], BatcherStatistics]:
    """All streams in a random order, a long prompt among them; and how it went."""

    def open_faulty(config: EngineConfig, n_prefixes: int) -> Runtime:
        opened = open_checkpoint(checkpoint, None, config, n_prefixes)
        return Runtime(FaultyEngine(opened.engine, *faults), opened.tokenizer)

    async def generate(i: int) -> Completion:
        prompt, params = request(i)
        return await batcher.generate(prompt, params, priority=rng.randrange(3))

    device: dict[str, Any] = {"device": "cuda", "block_size": BLOCK, "n_threads": 1}
    batcher = Batcher._over(open_faulty, None, {**device, **options})
    async with batcher:
        if warm:
            await batcher.generate(request(0)[0], max_tokens=1)
        order = rng.sample(range(N_STREAMS), N_STREAMS)
        n_before = rng.randrange(N_STREAMS)
        calls = [generate(i) for i in order]
        calls.insert(n_before, batcher.generate(LONG, max_tokens=2))
        done = await asyncio.gather(*calls)
        del done[n_before]
        by_stream = dict(zip(order, done, strict=True))
        return [by_stream[i] for i in range(N_STREAMS)], batcher.statistics()


def outputs(completions: list[Completion]) -> list[object]:
    return [(c.token_ids, c.finish_reason, c.logprobs) for c in completions]


@pytest.fixture(scope="module")
def undisturbed(checkpoint: Path) -> list[object]:
    """What each stream gets with nobody else there."""

    async def one_by_one() -> list[Completion]:
        options: dict[str, Any] = {"device": "cuda", "n_ctx": 512, "n_threads": 1}
        async with Batcher(checkpoint, **options, max_draft_tokens=0) as batcher:
            return [await batcher.generate(*request(i)) for i in range(N_STREAMS)]

    return outputs(asyncio.run(one_by_one()))


WAYS: dict[str, dict[str, Any]] = {
    "preemptions": {"n_ctx": 320, "output_reserve": 0, "watermark": 0.0, "n_parallel": 16},
    "chunks": {"n_batch": 24, "max_prefill_tokens": 7, "n_ctx": 2048, "n_parallel": 16},
    "prefix hits": {"n_ctx": 2048, "n_parallel": 5},
    "drafts": {"n_ctx": 2048, "n_parallel": 16, "max_draft_tokens": 5},
    "failures": {"n_ctx": 2048, "n_parallel": 16},
}


@pytest.mark.parametrize("seed", [2, 3])  # with which each way comes about
@pytest.mark.parametrize("way", WAYS)
async def test_random_schedules(
    architecture: str,
    checkpoint: Path,
    undisturbed: list[object],
    way: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Otherwise the time that steps take decides whether a draft is worth its rows.
    monkeypatch.setattr(StepCost, "rows_of_an_empty_step", 300.0)
    monkeypatch.setattr(StepCost, "row", 0.0)
    rng = random.Random(f"{way} {seed}")
    n_batch = rng.choice((64, 128, 512))
    options: dict[str, Any] = {
        "n_batch": n_batch,
        "max_prefill_tokens": rng.choice((0, 16, 50)),
        "max_num_partial_prefills": rng.choice((1, 3)),
        "victim_policy": rng.choice(("youngest", "priority", "cheapest")),
        "max_draft_tokens": rng.choice((0, 3)),
        "batch_size": rng.choice((1, N_STREAMS)),
        **WAYS[way],
    }
    options["n_ubatch"] = min(options["n_batch"], rng.choice((16, 100)))
    completions, counts = await serve(
        checkpoint,
        rng,
        options,
        warm=way == "prefix hits",
        faults=(FailStep({6 * seed}, after=seed == 2),) if way == "failures" else (),
    )
    assert outputs(completions) == undisturbed
    came_about = {
        "preemptions": counts.preemptions > 0,
        "chunks": counts.steps > 300 // 24,
        "prefix hits": counts.cached_tokens >= 2 * BLOCK,
        "drafts": (counts.accepted_tokens > 0) is (architecture not in RECURRENT),
        "failures": counts.restarts == 1,
    }
    assert came_about[way]

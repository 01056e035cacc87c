"""32 streams on the compiled engine, scheduled in every way: the same ids and log-probabilities.

A checkpoint with room for an 8k prompt. Each way is compared with the streams alone on a
roomy engine, bit for bit; the engine is looked at for what the way was to bring about.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pybatcher import Batcher, BatcherStatistics, Completion, SamplingParams
from pybatcher.params.config import EngineConfig
from pybatcher.serving.runtime import Runtime, open_checkpoint
from pybatcher.testing import FailStep, Fault, FaultyEngine
from pybatcher.testing.checkpoints import make_checkpoint

N_STREAMS = 32
LONG = [7 * i % 380 for i in range(8000)]
SHORTER = LONG[:2500]  # of many chunks too, however long those are
ROOMY = {"n_ctx": 32768, "n_parallel": 40, "batch_size": N_STREAMS, "batch_timeout": 1.0}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        tmp_path_factory.mktemp("long"),
        "llama",
        num_hidden_layers=2,
        max_position_embeddings=16384,
        max_shard_size="5GB",
    )


def request(i: int) -> tuple[list[int], SamplingParams]:
    """16 greedy, 16 sampled with a seed; every fourth prompt is one that another has too."""
    prompt = [(11 * (i - i % 4 // 3) + j) % 380 for j in range(10 + 3 * (i % 5))]
    params = SamplingParams(
        max_tokens=24 + i % 7,
        temperature=0.0 if i < N_STREAMS // 2 else 0.9,
        seed=i,
        logprobs=2,
        ignore_eos=True,
    )
    return prompt, params


async def serve(
    checkpoint: Path,
    options: dict[str, Any],
    *,
    long_prompt: list[int] | None = None,
    warm: bool = False,
    priorities: bool = False,
    faults: tuple[Fault, ...] = (),
) -> tuple[list[Completion], BatcherStatistics]:
    """All streams at once; and how it went."""

    def open_faulty(config: EngineConfig, n_prefixes: int) -> Runtime:
        opened = open_checkpoint(checkpoint, None, config, n_prefixes)
        return Runtime(FaultyEngine(opened.engine, *faults), opened.tokenizer)

    batcher = Batcher._over(open_faulty, None, {"n_threads": 1, **options})
    async with batcher:
        if warm:
            await asyncio.gather(*(batcher.generate(request(i)[0], max_tokens=1) for i in range(9)))
        long = None
        if long_prompt is not None:
            long = asyncio.create_task(batcher.generate(long_prompt, max_tokens=2, priority=-1))
            await asyncio.sleep(0)
        calls = []
        for i in range(N_STREAMS):
            prompt, params = request(i)
            calls.append(batcher.generate(prompt, params, priority=i % 3 if priorities else 0))
        completions = list(await asyncio.gather(*calls))
        if long is not None:
            await long
        return completions, batcher.statistics()


def outputs(completions: list[Completion]) -> list[object]:
    return [(c.token_ids, c.finish_reason, c.logprobs) for c in completions]


@pytest.fixture(scope="module")
def undisturbed(checkpoint: Path) -> list[object]:
    """What each stream gets with nobody else there."""

    async def one_by_one() -> list[Completion]:
        async with Batcher(checkpoint, n_threads=1, n_ctx=1024, max_draft_tokens=0) as batcher:
            return [await batcher.generate(*request(i)) for i in range(N_STREAMS)]

    return outputs(asyncio.run(one_by_one()))


async def test_without_and_with_a_prompt_of_8000_tokens(
    checkpoint: Path, undisturbed: list[object]
) -> None:
    alone, _ = await serve(checkpoint, ROOMY)
    assert outputs(alone) == undisturbed
    options = {"n_batch": 4096, "n_ubatch": 512}
    mixed, counts = await serve(checkpoint, ROOMY | options, long_prompt=LONG)
    assert outputs(mixed) == undisturbed
    assert counts.prompt_tokens > 8000


@pytest.mark.parametrize(
    "options",
    [
        {"n_batch": 40, "max_prefill_tokens": 7},
        {"n_batch": 512, "max_prefill_tokens": 64},
        {"n_batch": 1024, "n_ubatch": 512},
        {"long_prefill_token_threshold": 100, "max_num_partial_prefills": 1},
        {"max_num_partial_prefills": 4},
        {"itl_target": 0.002},
        {"dynamic_chunking": True},
        {"max_draft_tokens": 0, "n_parallel": 5},
    ],
    ids=str,
)
async def test_every_chunking(
    checkpoint: Path, undisturbed: list[object], options: dict[str, Any]
) -> None:
    completions, _ = await serve(checkpoint, ROOMY | options, long_prompt=SHORTER)
    assert outputs(completions) == undisturbed


@pytest.mark.parametrize("victim_policy", ["youngest", "priority", "cheapest"])
@pytest.mark.parametrize("n_ctx", [512, 256, 8192])
async def test_every_victim_policy_and_pool_size(
    checkpoint: Path, undisturbed: list[object], victim_policy: str, n_ctx: int
) -> None:
    """From some preemptions to one after the other."""
    options = {"n_ctx": n_ctx, "block_size": 16, "output_reserve": 0, "watermark": 0.0}
    completions, counts = await serve(
        checkpoint,
        ROOMY | options | {"victim_policy": victim_policy},
        long_prompt=LONG if n_ctx > len(LONG) else None,
        priorities=True,
    )
    assert outputs(completions) == undisturbed
    assert counts.preemptions > 0
    told = sum(completion.timeline.preemptions for completion in completions)
    assert told == counts.preemptions


async def test_prefix_hits_and_misses(checkpoint: Path, undisturbed: list[object]) -> None:
    completions, counts = await serve(checkpoint, ROOMY | {"block_size": 16}, warm=True)
    assert outputs(completions) == undisturbed
    assert counts.cached_tokens > 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("with_long_prompt", [False, True])
async def test_injected_failures(
    checkpoint: Path, undisturbed: list[object], after: bool, with_long_prompt: bool
) -> None:
    completions, counts = await serve(
        checkpoint,
        ROOMY | {"max_restarts": 100},
        long_prompt=SHORTER if with_long_prompt else None,
        faults=(FailStep({3, 50}, after=after),),
    )
    assert outputs(completions) == undisturbed
    assert counts.restarts > 0
    assert counts.replayed_tokens > 0

"""The compiled engine, restarted in the middle of its work: the same bits for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from pybatcher import Batcher, Completion, EngineFailedError, SamplingParams
from pybatcher.params.config import EngineConfig
from pybatcher.scheduling import StepPlan, StepResult
from pybatcher.serving.runtime import Runtime, open_checkpoint

PROMPTS = ["Once upon a time", "Mia and the kite", "What is 7 plus 5?", "The dragon named Ruby"]
SYSTEM = "You are a kind storyteller."


def params(i: int) -> SamplingParams:
    """Greedy and sampled in turn, with penalties and log-probabilities."""
    return SamplingParams(
        max_tokens=20 + i,
        temperature=0.9 * (i % 2),
        seed=i,
        logprobs=2,
        frequency_penalty=0.4 * (i % 3),
        ignore_eos=True,
    )


async def together(
    fails: Callable[[StepPlan], bool], poison: str | None = None, **options: Any
) -> tuple[list[Completion | BaseException], int]:
    """What eight requests and the poison get, and how many restarts there were."""

    def open_model(config: EngineConfig, n_prefixes: int) -> Runtime:
        runtime = open_checkpoint(None, None, config, n_prefixes)
        engine, step = runtime.engine, runtime.engine.step

        def faulty(plan: StepPlan) -> StepResult:
            if fails(plan):
                if len(plan.entries) % 2:
                    step(plan)  # computed, and its result lost
                raise MemoryError("no room for the pass")
            return step(plan)

        engine.step = faulty
        return runtime

    batcher = Batcher._over(open_model, SYSTEM, {"batch_size": 9, "max_restarts": 1000, **options})
    async with batcher:
        texts = [f"{prompt} {i}" for i in range(2) for prompt in PROMPTS]
        calls = [batcher.generate(text, params(i)) for i, text in enumerate(texts)]
        if poison is not None:
            calls.append(batcher.generate(poison, params(0)))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert batcher.health().ok
        return list(results), batcher.statistics().restarts


def outputs(completions: list[Any]) -> list[object]:
    return [(c.text, c.token_ids, c.finish_reason, c.logprobs) for c in completions]


@pytest.mark.parametrize("first", range(3))
async def test_failures_at_any_step_leave_no_trace(first: int) -> None:
    turns = count(first)
    undisturbed, _ = await together(lambda plan: False)
    options: dict[str, Any] = {"n_batch": 16, "n_parallel": 4} if first else {}
    disturbed, n_restarts = await together(
        lambda plan: len(plan.entries) > 1 and next(turns) % 5 == 4, **options
    )
    assert n_restarts > 2
    assert outputs(disturbed) == outputs(undisturbed)


async def test_a_poisonous_request_fails_alone() -> None:
    poison = "zzzz qqqq"
    async with Batcher() as batcher:
        tokenizer = batcher.runtime.tokenizer
    marker = tuple(tokenizer.encode(poison, add_special_tokens=False))
    undisturbed, _ = await together(lambda plan: False)
    disturbed, n_restarts = await together(
        lambda plan: any(entry.tokens[: len(marker)] == marker for entry in plan.entries), poison
    )
    assert n_restarts == 2
    failed = disturbed.pop()
    assert isinstance(failed, EngineFailedError)
    assert isinstance(failed.__cause__, MemoryError)
    assert outputs(disturbed) == outputs(undisturbed)

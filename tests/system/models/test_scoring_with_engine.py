"""`score` and `embed` over the compiled engine: against transformers, and the schedule's traces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pybatcher import Batcher

PROMPT = [(i * 37 + 5) % 203 for i in range(290)]  # past one segment of attention
OTHERS = [[(i * 11 + n) % 203 for i in range(20 + 7 * n)] for n in range(4)]
CLOSE = 1e-4


@pytest.fixture(scope="module")
def module() -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=203,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=None,
        bos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config).eval()


def over(module: Any, **options: Any) -> Batcher:
    return Batcher.from_torch(module, dtype="f32", **{"n_ctx": 4096, **options})


async def test_score_is_that_of_transformers(module: Any, one_thread: None) -> None:
    import torch

    continuations = [PROMPT[:1], [7, 8, 9], [200] * 30]
    async with over(module) as batcher:
        scores = await batcher.score(PROMPT, continuations, top_logprobs=5)
    for continuation, score in zip(continuations, scores, strict=True):
        with torch.no_grad():
            logits = module(torch.tensor([PROMPT + continuation])).logits[0].double()
        rows = logits.log_softmax(-1)[len(PROMPT) - 1 : -1]
        expected = rows.gather(1, torch.tensor(continuation)[:, None])[:, 0].numpy()
        assert np.abs(np.array(score.token_logprobs) - expected).max() < CLOSE
        assert abs(score.logprob - expected.sum()) < CLOSE * len(continuation)
        likeliest = rows.topk(5)
        told = np.array([[logprob for _, logprob in top] for top in score.top_logprobs])
        assert np.abs(told - likeliest.values.numpy()).max() < CLOSE
        ids = [[token for token, _ in top] for top in score.top_logprobs]
        assert np.abs(rows.gather(1, torch.tensor(ids)).numpy() - told).max() < CLOSE


@pytest.mark.parametrize("pooling", ["last", "mean"])
async def test_embed_is_that_of_transformers(module: Any, pooling: str, one_thread: None) -> None:
    import torch

    async with over(module) as batcher:
        embeddings = await batcher.embed([PROMPT, *OTHERS], pooling=pooling)
    for text, embedding in zip([PROMPT, *OTHERS], embeddings, strict=True):
        with torch.no_grad():
            states = module.model(torch.tensor([text])).last_hidden_state[0].numpy()
        expected = states.mean(0) if pooling == "mean" else states[-1]
        error = np.linalg.norm(embedding.vector - expected) / np.linalg.norm(expected)
        assert error < CLOSE


async def test_score_of_what_was_drawn_has_its_bits() -> None:
    async with Batcher() as batcher:
        for prompt in ("Once upon a time", "What is 7 plus 5?"):
            drawn = await batcher.generate(prompt, max_tokens=40, logprobs=3, ignore_eos=True)
            (score,) = await batcher.score(prompt, [drawn.token_ids], top_logprobs=3)
            assert drawn.logprobs is not None
            assert list(score.token_logprobs) == [entry.logprob for entry in drawn.logprobs]
            assert list(score.top_logprobs) == [entry.top for entry in drawn.logprobs]
            assert list(score.token_logprobs) == [top[0][1] for top in score.top_logprobs]


async def test_the_schedule_leaves_no_trace(module: Any, one_thread: None) -> None:
    """Alone, in chunks, beside others, on a prefix hit, and where KV is always short."""
    continuations = [[1, 2, 3], [4] * 40, [5]]

    async def ask(batcher: Batcher) -> tuple[Sequence[object], list[bytes]]:
        scores = await batcher.score(PROMPT, continuations, top_logprobs=4)
        last = await batcher.embed([PROMPT, *OTHERS])
        mean = await batcher.embed(OTHERS, pooling="mean")
        return scores, [embedding.vector.tobytes() for embedding in (*last, *mean)]

    async with over(module, n_batch=512) as batcher:
        expected = await ask(batcher)
        assert await ask(batcher) == expected, "from the prefix cache"
    short = {"n_ctx": 640, "output_reserve": 0, "n_parallel": 6, "watermark": 0.0}
    for options in ({"n_batch": 50}, {"n_batch": 64, "max_prefill_tokens": 5}, short):
        async with over(module, **options) as batcher:
            tasks = [
                asyncio.create_task(batcher.generate(other * 3, max_tokens=200)) for other in OTHERS
            ]
            assert await ask(batcher) == expected
            for task in tasks:
                await task
            if options is short:
                assert batcher.statistics().preemptions > 0

"""`score` and `embed` on an emulated GPU: transformers' numbers, the same bits in any company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulated_engine import VOCAB, load_engine, tokens_of

from pybatcher import Batcher
from pybatcher.scheduling.plan import Pooling, StepEntry, StepPlan, TopLogprobs
from pybatcher.testing.checkpoints import make_checkpoint

PROMPT = tokens_of(270, 7)  # past one segment of attention
OTHERS = [tokens_of(20 + 7 * n, n) for n in range(3)]
CONTINUATIONS = [PROMPT[:1], [7, 8, 9], [200] * 12]
CLOSE = 1e-4
POOLINGS: tuple[Pooling, ...] = ("last", "mean")


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
async def test_transformers_says_the_same(architecture: str, tmp_path: Path) -> None:
    import torch
    import transformers

    path = make_checkpoint(tmp_path, architecture, vocab_size=VOCAB + 181)
    module = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32
    )
    async with Batcher(path, device="cuda", dtype="f32", n_ctx=2048, n_threads=1) as batcher:
        scores = await batcher.score(PROMPT, CONTINUATIONS, top_logprobs=3)
        embeddings = {
            pooling: await batcher.embed([PROMPT, *OTHERS], pooling=pooling) for pooling in POOLINGS
        }
    for continuation, score in zip(CONTINUATIONS, scores, strict=True):
        with torch.no_grad():
            logits = module(torch.tensor([PROMPT + continuation])).logits[0].double()
        rows = logits.log_softmax(-1)[len(PROMPT) - 1 : -1]
        expected = rows.gather(1, torch.tensor(continuation)[:, None])[:, 0].numpy()
        assert np.abs(np.array(score.token_logprobs) - expected).max() < CLOSE
        told = np.array([[logprob for _, logprob in top] for top in score.top_logprobs])
        assert np.abs(told - rows.topk(3).values.numpy()).max() < CLOSE
    for i, text in enumerate([PROMPT, *OTHERS]):
        with torch.no_grad():
            states = module.base_model(torch.tensor([text])).last_hidden_state[0].numpy()
        for pooling in POOLINGS:
            expected = states.mean(0) if pooling == "mean" else states[-1]
            error = np.linalg.norm(embeddings[pooling][i].vector - expected)
            assert error / np.linalg.norm(expected) < CLOSE


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [("llama", "f32"), ("qwen3", "bf16"), ("gpt2", "int8"), ("llama", "int4")],
)
def test_the_same_bits_in_any_company(architecture: str, dtype: str, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, architecture, tokenizer=False, vocab_size=VOCAB)
    whole = [*PROMPT, *OTHERS[2]]
    targets = tuple(OTHERS[2])
    engine = load_engine(path, dtype=dtype)
    scored = engine.seq_new("scored")
    engine.prefill_chunk(scored, PROMPT[:-1])
    alone: list[float] = []
    top_alone: list[TopLogprobs] = []
    for position in range(len(PROMPT) - 1, len(whole) - 1):
        entry = StepEntry(
            scored, (whole[position],), False, targets=(whole[position + 1],), n_top=3
        )
        result = engine.step(StepPlan((entry,), 0, 0))
        alone += result.logprobs[scored]
        top_alone += result.top_logprobs[scored]
    vectors = {
        pooling: engine.embed(engine.seq_new(pooling), PROMPT, pooling) for pooling in POOLINGS
    }
    engine.close()

    rng = np.random.default_rng(2)
    engine = load_engine(path, dtype=dtype, n_ubatch=45)
    scored, neighbour = engine.seq_new("scored"), engine.seq_new("neighbour")
    scores: list[float] = []
    top: list[TopLogprobs] = []
    position, pending = 0, list(POOLINGS)
    while position < len(whole) - 1:
        end = min(position + int(rng.integers(1, 160)), len(whole) - 1)
        entries = [
            StepEntry(neighbour, tuple(PROMPT[: rng.integers(1, 9)]), True),
            StepEntry(
                scored,
                tuple(whole[position:end]),
                False,
                targets=tuple(whole[max(position + 1, len(PROMPT)) : end + 1]),
                n_top=3,
            ),
        ]
        pooling = pending.pop() if pending else None
        pooled = engine.seq_new(str(position))
        if pooling is not None:
            entries.append(StepEntry(pooled, tuple(PROMPT), False, pooling=pooling))
        order = rng.permutation(len(entries))
        result = engine.step(StepPlan(tuple(entries[i] for i in order), 0, 0))
        scores += result.logprobs.get(scored, ())
        top += result.top_logprobs.get(scored, ())
        if pooling is not None:
            assert result.embeddings[pooled].tobytes() == vectors[pooling].tobytes()
        engine.seq_remove(pooled)
        position = end
    assert not pending
    assert len(alone) == len(targets)
    assert scores == alone
    assert top == top_alone
    engine.check_integrity()
    engine.close()

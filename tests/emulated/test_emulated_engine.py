"""The engine on an emulated GPU: transformers' logits, and the same bits under any schedule."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pybatcher import Batcher
from pybatcher.engine import Engine
from pybatcher.errors import EngineError
from pybatcher.scheduling.plan import StepEntry, StepPlan
from pybatcher.testing.checkpoints import ARCHITECTURES, make_checkpoint

Floats = NDArray[np.float32]

IS_REAL = os.environ.get("PYBATCHER_TEST_GPU") == "real"  # as bench/gpu_check.py sets it
VOCAB = 203
N_PROMPT = 280  # past one segment of attention (256), so that partial softmax states are merged
FORMATS = [
    ("f32", "f32"),
    ("f32", "int8"),
    ("bf16", "bf16"),
    ("bf16", "f16"),
    ("int8", "bf16"),
    ("int4", "int8"),
]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def path(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(architecture)
    return make_checkpoint(folder, architecture, tokenizer=False, vocab_size=VOCAB)


def load(path: Path | None, **options: Any) -> Engine:
    sizes: dict[str, Any] = {"n_ctx": 1024, "n_parallel": 8, "n_threads": 1, "block_size": 16}
    return Engine.load(path, device="cuda", **{**sizes, **options})


def tokens_of(n: int, seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, VOCAB, n).tolist()
    return tokens


def logits_of(engine: Engine, seq_id: int, tokens: list[int], chunk: int) -> Floats:
    """The logits after each chunk, (chunks, vocab)."""
    rows = [
        engine.prefill_chunk(seq_id, tokens[i : i + chunk], logits=True)
        for i in range(0, len(tokens), chunk)
    ]
    return np.stack(rows)


def test_it_says_what_it_is() -> None:
    engine = load(None)
    assert engine.description()["device"] == ("cuda" if IS_REAL else "cuda (emulated)")
    engine.close()


def test_transformers_says_the_same(path: Path) -> None:
    import torch
    import transformers

    module = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32
    )
    prompt = tokens_of(N_PROMPT, 1)
    with torch.no_grad():
        expected = module(torch.tensor([prompt])).logits[0].float().numpy()
    engine = load(path, dtype="f32", n_ubatch=128)
    for chunk in (40, 64, N_PROMPT):
        rows = logits_of(engine, engine.seq_new(str(chunk)), prompt, chunk)
        ends = [min(i + chunk, N_PROMPT) - 1 for i in range(0, N_PROMPT, chunk)]
        error = np.linalg.norm(rows - expected[ends], axis=-1)
        assert (error / np.linalg.norm(expected[ends], axis=-1)).max() < 1e-4, f"chunks of {chunk}"
    engine.check_integrity()
    engine.close()


@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_the_same_bits_under_any_schedule(path: Path, dtype: str, kv_dtype: str) -> None:
    formats = {"dtype": dtype, "kv_dtype": kv_dtype}
    tokens = tokens_of(39, 2)
    alone = load(path, **formats)
    expected = alone.prefill_chunk(alone.seq_new(), tokens, logits=True)
    after = alone.decode_batch([0], [7], logits=True)[1][0]

    engine = load(path, n_ubatch=8, **formats)
    chunked = engine.seq_new("chunked")
    assert (logits_of(engine, chunked, tokens, 7)[-1] == expected).all()
    matched = engine.seq_new("chunked")
    n_matched = engine.seq_match(matched, tokens)
    assert n_matched == 32
    assert (engine.prefill_chunk(matched, tokens[n_matched:], logits=True) == expected).all()
    copied = engine.seq_new("chunked")
    engine.seq_copy(chunked, copied, 21)
    assert (engine.prefill_chunk(copied, tokens[21:], logits=True) == expected).all()
    engine.seq_remove(copied, 30)
    assert (engine.prefill_chunk(copied, tokens[30:], logits=True) == expected).all()
    other = engine.seq_new("other")
    engine.prefill_chunk(other, tokens_of(5, 3))
    together = [other, copied, chunked, matched]
    rows = engine.decode_batch(together, [9, 7, 7, 7], logits=True)[1]
    assert (rows[1:] == after).all()
    engine.check_integrity()
    engine.restart()
    assert (engine.prefill_chunk(engine.seq_new(), tokens, logits=True) == expected).all()
    engine.close()
    alone.close()


def test_drafts_change_no_token(path: Path) -> None:
    tokens = tokens_of(11, 4)
    plain, drafted = load(path), load(path)
    for engine in (plain, drafted):
        engine.prefill_chunk(engine.seq_new(), tokens[:-1])
    expected, last = [], tokens[-1]
    for _ in range(4):
        last = int(plain.decode_batch([0], [last])[0])
        expected.append(last)
    draft = [*expected[:2], (expected[2] + 1) % VOCAB]
    entry = StepEntry(seq_id=0, tokens=(tokens[-1], *draft), sample=True, n_draft=3)
    plan = StepPlan((entry,), decode_rows=4, prefill_rows=0)
    drawn = [token.token_id for token in drafted.step(plan).sampled[0]]
    assert drawn == expected[:3]
    plain.close()
    drafted.close()


async def test_a_batcher_draws_what_the_cpu_draws() -> None:
    """Greedy, and by seed with every option that changes scores."""
    options: dict[str, Any] = {
        "max_tokens": 6,
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "logit_bias": {300: 1.5},
        "logprobs": 2,
        "seed": 5,
    }
    texts = {}
    for device in ("cpu", "cuda"):
        async with Batcher(device=device, dtype="f32", n_ctx=256, n_threads=1) as batcher:
            greedy = await batcher.generate("Once upon a time", max_tokens=6)
            drawn = await batcher.generate("Once upon a time", **options)
            texts[device] = (greedy.token_ids, drawn.token_ids)
    assert texts["cuda"] == texts["cpu"]


@pytest.mark.emulator  # a large GPU has room for the greatest context
def test_a_context_that_does_not_fit_says_how_much_was_wanted() -> None:
    with pytest.raises(EngineError, match="memory"):
        load(None, n_ctx=2**26)

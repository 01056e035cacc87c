"""The engine on an emulated GPU against transformers, and against the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_engine import ON_GPU, VOCAB, Floats, load_engine, tokens_of

from pybatcher import Batcher
from pybatcher.testing.checkpoints import ARCHITECTURES, make_checkpoint

CLOSE = 1e-4
N_PROMPT = 280  # past one segment of attention (256), so that partial softmax states are merged
N_GREEDY = 12
EXPERTS = {  # of Gemma 4 26B-A4B, beside its MLPs
    "enable_moe_block": True,
    "num_experts": 9,
    "top_k_experts": 3,
    "moe_intermediate_size": 40,
}


def logits_of(module: Any, tokens: list[int]) -> Floats:
    """Of every position, (len(tokens), vocab) f32."""
    import torch

    with torch.no_grad():
        logits: Floats = module(torch.tensor([tokens])).logits[0].float().numpy()
    return logits


def distance(logits: Floats, expected: Floats) -> float:
    """Of the worst row, relative to the norm of the expected one."""
    error = np.linalg.norm(logits - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    return float(error.max())


def test_it_says_what_it_is() -> None:
    engine = load_engine(None)
    expected = "cuda" if ON_GPU else "cuda (emulated)"
    assert engine.description()["device"] == expected
    engine.close()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [*((name, {}) for name in ARCHITECTURES), pytest.param("gemma4", EXPERTS, id="gemma4-experts")],
)
def test_transformers_says_the_same(
    architecture: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    """The prompt in chunks of each size, then greedy tokens, those of all chunkings together."""
    import torch
    import transformers

    path = make_checkpoint(tmp_path, architecture, tokenizer=False, vocab_size=VOCAB, **fields)
    module = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32
    )
    prompt = tokens_of(N_PROMPT, 1)
    expected = logits_of(module, prompt)
    engine = load_engine(path, dtype="f32", n_ctx=2048, n_ubatch=128)
    seq_ids = []
    for chunk in (1, 7, 64, N_PROMPT):
        seq_id = engine.seq_new(str(chunk))  # a name space of its own: nothing is shared
        rows = [
            engine.prefill_chunk(seq_id, prompt[begin : begin + chunk], logits=True)
            for begin in range(0, N_PROMPT, chunk)
        ]
        ends = [min(begin + chunk, N_PROMPT) - 1 for begin in range(0, N_PROMPT, chunk)]
        assert distance(np.stack(rows), expected[ends]) < CLOSE, f"chunks of {chunk}"
        seq_ids.append(seq_id)

    greedy = [int(expected[-1].argmax())]
    decoded: list[Floats] = []
    for _ in range(N_GREEDY):
        drawn, together = engine.decode_batch(seq_ids, [greedy[-1]] * len(seq_ids), logits=True)
        assert (together == together[0]).all()
        assert (drawn == drawn[0]).all()
        decoded.append(together[0])
        greedy.append(int(drawn[0]))
    after = logits_of(module, prompt + greedy[:-1])[N_PROMPT:]
    assert distance(np.stack(decoded), after) < CLOSE
    assert greedy[1:] == after.argmax(axis=1).tolist()
    engine.check_integrity()
    engine.close()


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

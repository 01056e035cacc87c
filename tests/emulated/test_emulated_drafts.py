"""Drafts on an emulated GPU: tokens and log-probabilities of plain decoding, bit for bit.

Each sequence is first decoded alone, a token a step. Then they are decoded together in steps with
right and wrong drafts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulated_engine import VOCAB, load_engine, tokens_of

from pybatcher.engine import Engine
from pybatcher.params import SamplingParams
from pybatcher.scheduling.plan import SampledToken, StepEntry, StepPlan
from pybatcher.testing.checkpoints import make_checkpoint

CASES = [
    ("llama", "f32", "f32"),
    ("llama", "bf16", "bf16"),
    ("mistral", "bf16", "f16"),
    ("qwen2", "int8", "bf16"),
    ("qwen3", "int4", "int8"),
    ("gpt2", "f32", "f32"),
]
N_DRAWN = 10
LENGTHS = (250, 5, 18, 33)  # of prompts; the first sequence grows past a segment of attention
WAYS = [
    SamplingParams(logprobs=3),
    SamplingParams(temperature=1.2, logprobs=2),
    SamplingParams(temperature=0.9, top_p=0.9, min_tokens=6, logprobs=0),
    SamplingParams(
        temperature=0.7,
        top_k=20,
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        logit_bias={5: 2.0},
        logprobs=8,
    ),
]


def start(engine: Engine, number: int) -> int:
    seq_id = engine.seq_new(str(number))
    engine.seq_sampling(
        seq_id,
        WAYS[number],
        seed=number,
        n_prompt=LENGTHS[number],
        stop_token_ids=tuple(range(0, VOCAB, 3)),
    )
    return seq_id


def step(engine: Engine, *entries: StepEntry) -> dict[int, list[SampledToken]]:
    result = engine.step(StepPlan(entries, 0, 0))
    assert not result.failed
    return {seq_id: list(drawn) for seq_id, drawn in result.sampled.items()}


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_right_and_wrong_drafts_change_nothing(case: tuple[str, str, str], tmp_path: Path) -> None:
    architecture, dtype, kv_dtype = case
    path = make_checkpoint(tmp_path, architecture, tokenizer=False, vocab_size=VOCAB)
    prompts = [tokens_of(length, seed) for seed, length in enumerate(LENGTHS)]
    engine = load_engine(path, dtype=dtype, kv_dtype=kv_dtype)
    expected: list[list[SampledToken]] = []
    for number, prompt in enumerate(prompts):
        seq_id = start(engine, number)
        drawn = step(engine, StepEntry(seq_id, tuple(prompt), True))[seq_id]
        while len(drawn) < N_DRAWN:
            drawn += step(engine, StepEntry(seq_id, (drawn[-1].token_id,), True))[seq_id]
        expected.append(drawn)
    engine.close()

    rng = np.random.default_rng(1)
    engine = load_engine(path, dtype=dtype, kv_dtype=kv_dtype, n_ubatch=48)
    numbers = {start(engine, number): number for number in range(len(prompts))}
    n_drawn = dict.fromkeys(numbers, 0)
    while live := [seq_id for seq_id in numbers if n_drawn[seq_id] < N_DRAWN]:
        entries = []
        for seq_id in rng.permutation(live).tolist():
            number, n_before = numbers[seq_id], n_drawn[seq_id]
            n_draft = min(int(rng.integers(0, 5)), N_DRAWN - n_before - 1)
            output = [token.token_id for token in expected[number][: n_before + n_draft]]
            tokens = (prompts[number] + output)[engine.seq_length(seq_id) :]
            if n_draft and rng.integers(2):
                spoilt = len(tokens) - 1 - int(rng.integers(n_draft))
                tokens[spoilt] = (tokens[spoilt] + 1) % VOCAB
            entries.append(StepEntry(seq_id, tuple(tokens), True, n_draft))
        for seq_id, drawn in step(engine, *entries).items():
            n_before = n_drawn[seq_id]
            n_drawn[seq_id] += len(drawn)
            assert drawn == expected[numbers[seq_id]][n_before : n_drawn[seq_id]]
        engine.check_integrity()
    counts = engine.statistics()
    assert 0 < counts["accepted_tokens"] < counts["proposed_tokens"]
    engine.close()

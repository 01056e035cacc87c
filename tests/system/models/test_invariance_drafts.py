"""Invariance 1 of steps with drafts: tokens and log-probabilities of plain decoding, bit for bit.

Each sequence is first decoded alone, a token a step, on one thread. Then the same sequences are
decoded in steps with right and wrong drafts, next to sequences that have drafts too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from invariance_cases import CASES, LONGEST

from pybatcher.engine import Engine
from pybatcher.params import SamplingParams
from pybatcher.scheduling.plan import SampledToken, StepEntry, StepPlan
from pybatcher.testing.checkpoints import make_checkpoint

VOCAB = 203
N_DRAWN = 40
ENDS = tuple(range(0, VOCAB, 3))

WAYS = [
    SamplingParams(logprobs=3),
    SamplingParams(temperature=1.2, logprobs=2),
    SamplingParams(temperature=0.9, top_p=0.9, min_tokens=20, max_tokens=N_DRAWN, logprobs=0),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, logprobs=4),
    SamplingParams(
        temperature=0.7,
        top_k=20,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        logit_bias={5: 2.0},
        min_tokens=9,
        logprobs=32,
    ),
]


@dataclass(eq=False)
class Sequence:
    """A prompt, how it is drawn from, and what is drawn."""

    number: int
    prompt: list[int]
    params: SamplingParams
    expected: list[SampledToken] = field(default_factory=list)

    def start(self, engine: Engine, namespace: str | None = None) -> int:
        seq_id = engine.seq_new(str(self.number) if namespace is None else namespace)
        engine.seq_sampling(
            seq_id,
            self.params,
            seed=self.number,
            n_prompt=len(self.prompt),
            stop_token_ids=ENDS,
        )
        return seq_id

    def tokens(self, count: int) -> list[int]:
        """The first `count` of prompt and output."""
        return [*self.prompt, *(drawn.token_id for drawn in self.expected)][:count]


@dataclass(frozen=True)
class Rig:
    options: dict[str, Any]
    sequences: list[Sequence]


def step(engine: Engine, *entries: StepEntry) -> dict[int, tuple[SampledToken, ...]]:
    result = engine.step(StepPlan(entries, 0, 0))
    assert not result.failed
    return dict(result.sampled)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    target, architecture, dtype, kv_dtype = request.param
    path = make_checkpoint(
        tmp_path_factory.mktemp("model"), architecture, tokenizer=False, vocab_size=VOCAB
    )
    rng = np.random.default_rng(5)
    lengths = [LONGEST - N_DRAWN - 1, 240, *rng.integers(1, 70, 6)]
    prompts = [rng.integers(0, VOCAB, length).tolist() for length in lengths]
    head = rng.integers(0, VOCAB, 70).tolist()  # what the later ones can share
    sequences = [
        Sequence(i, head * (i > 1) + prompt, WAYS[i % len(WAYS)])
        for i, prompt in enumerate(prompts)
    ]
    options = {
        "path": path,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "n_ctx": 2048,
        "n_parallel": len(sequences),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYBATCHER_CPU_TARGET", target)
        engine = Engine.load(**options, n_threads=1, n_ubatch=1)
        for sequence in sequences:
            seq_id = sequence.start(engine)
            tokens = sequence.prompt
            while len(sequence.expected) < N_DRAWN:
                (drawn,) = step(engine, StepEntry(seq_id, tuple(tokens), True))[seq_id]
                sequence.expected.append(drawn)
                tokens = [drawn.token_id]
            engine.seq_remove(seq_id)
        engine.close()
        yield Rig(options, sequences)


@pytest.mark.parametrize(
    ("n_ubatch", "n_threads", "shares"),
    [(1, 1, False), (5, 2, True), (64, 1, False), (512, 2, True)],
)
def test_right_and_wrong_drafts(rig: Rig, n_ubatch: int, n_threads: int, shares: bool) -> None:
    """Steps of several sequences, at the end of a prompt and after; drafts spoilt anywhere.

    shares: the pages of equal beginnings, which are then attended to together.
    """
    rng = np.random.default_rng([n_ubatch, n_threads])
    engine = Engine.load(**rig.options, n_ubatch=n_ubatch, n_threads=n_threads)
    namespace = "" if shares else None
    ids = {sequence.start(engine, namespace): sequence for sequence in rig.sequences}
    n_drawn = dict.fromkeys(ids, 0)
    while live := [seq_id for seq_id in ids if n_drawn[seq_id] < N_DRAWN]:
        entries = []
        for seq_id in rng.permutation(live)[: int(rng.integers(1, len(live) + 1))].tolist():
            sequence = ids[seq_id]
            length = engine.seq_length(seq_id) or engine.seq_match(seq_id, sequence.prompt)
            known = len(sequence.prompt) + n_drawn[seq_id]
            n_draft = min(int(rng.integers(0, 10)), N_DRAWN - n_drawn[seq_id] - 1)
            tokens = sequence.tokens(known + n_draft)[length:]
            if n_draft and rng.integers(2):
                spoilt = int(rng.integers(known - length, len(tokens)))
                tokens[spoilt] = (tokens[spoilt] + 1) % VOCAB
            entries.append(StepEntry(seq_id, tuple(tokens), True, n_draft))
        for seq_id, drawn in step(engine, *entries).items():
            n_before = n_drawn[seq_id]
            n_drawn[seq_id] += len(drawn)
            assert list(drawn) == ids[seq_id].expected[n_before : n_drawn[seq_id]]
            assert engine.seq_length(seq_id) == len(ids[seq_id].prompt) + n_drawn[seq_id] - 1
        engine.check_integrity()
    counts = engine.statistics()
    assert 0 < counts["accepted_tokens"] < counts["proposed_tokens"]
    engine.close()


def test_what_is_cached_after_wrong_drafts_is_right(rig: Rig) -> None:
    """Blocks that were filled in steps with wrong drafts, attached to another sequence."""
    engine = Engine.load(**rig.options, n_ubatch=64)
    sequence = rig.sequences[1]
    first = sequence.start(engine)
    n_drawn = 0
    while n_drawn < N_DRAWN - 1:
        known = len(sequence.prompt) + n_drawn
        n_draft = min(7, N_DRAWN - n_drawn - 1)
        tokens = sequence.tokens(known + n_draft)[engine.seq_length(first) :]
        tokens[-1] = (tokens[-1] + 1) % VOCAB
        n_drawn += len(step(engine, StepEntry(first, tuple(tokens), True, n_draft))[first])
    engine.seq_remove(first)
    second = sequence.start(engine)
    tokens = sequence.tokens(len(sequence.prompt) + N_DRAWN - 1)
    matched = engine.seq_match(second, tokens)
    assert matched == (len(tokens) - 1) // 32 * 32
    (drawn,) = step(engine, StepEntry(second, tuple(tokens[matched:]), True))[second]
    assert drawn == sequence.expected[-1]
    engine.check_integrity()
    engine.close()

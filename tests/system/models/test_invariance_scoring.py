"""Invariant 1 of log-probabilities and pooled states: the same bits however the work is cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import TARGETS
from numpy.typing import NDArray

from pybatcher.engine import Engine
from pybatcher.params import SamplingParams
from pybatcher.scheduling.plan import StepEntry, StepPlan, TopLogprobs
from pybatcher.testing.checkpoints import make_checkpoint

PROMPT = [(i * 37 + 5) % 203 for i in range(290)]  # past one segment of attention
N_DRAWN = 20
OPTIONS: dict[str, Any] = {"n_ctx": 2048, "n_parallel": 8}


class Rig:
    """One model; what greedy decoding draws after PROMPT, its log-probabilities, a mean state."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path, self.dtype = path, dtype
        engine = self.engine(n_ubatch=1, n_threads=1)
        seq_id = engine.seq_new()
        engine.seq_sampling(seq_id, SamplingParams(logprobs=3))
        self.drawn: list[int] = []
        self.logprobs: list[float] = []
        self.top: list[TopLogprobs] = []
        tokens = tuple(PROMPT)
        for _ in range(N_DRAWN):
            plan = StepPlan((StepEntry(seq_id, tokens, True),), 0, 0)
            (token,) = engine.step(plan).sampled[seq_id]
            assert token.logprob is not None
            self.drawn.append(token.token_id)
            self.logprobs.append(token.logprob)
            self.top.append(token.top_logprobs)
            tokens = (token.token_id,)
        self.mean: NDArray[np.float32] = engine.embed(engine.seq_new("mean"), PROMPT, "mean")
        self.last: NDArray[np.float32] = engine.embed(engine.seq_new("last"), PROMPT, "last")
        engine.close()

    def engine(self, **options: int) -> Engine:
        return Engine.load(self.path, dtype=self.dtype, **OPTIONS, **options)


@pytest.fixture(
    scope="module",
    params=[
        *itertools.product(TARGETS, ["llama"], ["f32", "bf16", "int8", "int4"]),
        (TARGETS[-1], "gpt2", "bf16"),
        (TARGETS[-1], "qwen3", "int8"),
    ],
    ids="-".join,
)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    target, architecture, dtype = request.param
    path = tmp_path_factory.mktemp("model")
    make_checkpoint(path, architecture, tokenizer=False, vocab_size=203)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYBATCHER_CPU_TARGET", target)
        yield Rig(path, dtype)


@pytest.mark.parametrize(("n_ubatch", "n_threads"), [(1, 2), (13, 1), (64, 2), (512, 2)])
def test_scores_and_embeddings(rig: Rig, n_ubatch: int, n_threads: int) -> None:
    """Scored in chunks of any size, beside sequences that prefill, decode and are pooled."""
    rng = np.random.default_rng(n_ubatch)
    engine = rig.engine(n_ubatch=n_ubatch, n_threads=n_threads)
    whole = [*PROMPT, *rig.drawn]
    neighbour = engine.seq_new("neighbour")
    for round_, largest in enumerate((400, 150, 40)):
        scored = engine.seq_new(f"scored {round_}")
        scores: list[float] = []
        top: list[TopLogprobs] = []
        position = n_pooled = 0
        while position < len(whole) - 1:
            end = min(position + int(rng.integers(1, largest)), len(whole) - 1)
            targets = whole[max(position + 1, len(PROMPT)) : end + 1]
            entries = [
                StepEntry(neighbour, tuple(PROMPT[: rng.integers(1, 9)]), True),
                StepEntry(scored, tuple(whole[position:end]), False, 0, tuple(targets), n_top=3),
            ]
            pooled = {}
            if n_pooled < 2 and rng.integers(2):
                n_pooled += 1
                for pooling in ("mean", "last"):
                    pooled[engine.seq_new(pooling + str(position))] = pooling
            for seq_id, pooling in pooled.items():
                entries.append(StepEntry(seq_id, tuple(PROMPT), False, pooling=pooling))  # type: ignore[arg-type]
            order = rng.permutation(len(entries))
            result = engine.step(StepPlan(tuple(entries[i] for i in order), 0, 0))
            scores += result.logprobs.get(scored, ())
            top += result.top_logprobs.get(scored, ())
            for seq_id, pooling in pooled.items():
                expected = rig.mean if pooling == "mean" else rig.last
                assert result.embeddings[seq_id].tobytes() == expected.tobytes()
                engine.seq_remove(seq_id)
            position = end
        assert scores == rig.logprobs
        assert top == rig.top
        engine.seq_remove(scored)
        engine.seq_remove(neighbour)
        neighbour = engine.seq_new(f"neighbour {round_}")
    engine.check_integrity()
    engine.close()

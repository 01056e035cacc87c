"""Sequences that share pages are attended together: the same bits as from pages of their own.

Each sequence is first computed in a name space of its own, its last tokens one a pass. Then all of
them decode and prefill together, with the pages of their common prefixes shared or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from engine_helpers import TARGETS
from numpy.typing import NDArray

from pybatcher.engine import Engine
from pybatcher.scheduling.plan import StepEntry, StepPlan
from pybatcher.testing.checkpoints import make_checkpoint

N_TAIL = 4  # positions at the end of each sequence that are decoded
# (whose prefix, how much of it, own tokens): all of a segment (256) and more, twigs on twigs,
# several segments, less than one, and a stranger.
FORKS = [
    (None, 0, 560),
    (0, 256, 9),
    (0, 544, 21),
    (0, 300, 40),
    (3, 320, 70),
    (0, 100, 30),
    (None, 0, 290),
    (6, 280, 5),
    (2, 512, 13),
]
CASES = list(itertools.product(TARGETS, ["f32", "bf16", "f16", "int8"]))


@dataclass(frozen=True)
class Forest:
    options: dict[str, Any]
    tokens: list[list[int]]
    expected: list[NDArray[np.float32]]  # of each sequence's last N_TAIL positions: (N_TAIL, vocab)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def forest(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Forest]:
    target, kv_dtype = request.param
    path = make_checkpoint(
        tmp_path_factory.mktemp("model"),
        "llama",
        tokenizer=False,
        vocab_size=203,
        num_hidden_layers=2,
        max_position_embeddings=1024,
    )
    rng = np.random.default_rng(5)
    tokens: list[list[int]] = []
    for source, shared, own in FORKS:
        prefix = [] if source is None else tokens[source][:shared]
        tokens.append(prefix + rng.integers(0, 203, own).tolist())
    options = {"path": path, "kv_dtype": kv_dtype, "n_ctx": 8192, "n_parallel": len(FORKS)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYBATCHER_CPU_TARGET", target)
        engine = Engine.load(**options, n_threads=1)
        expected = []
        for i, sequence in enumerate(tokens):
            seq_id = engine.seq_new(str(i))
            engine.prefill_chunk(seq_id, sequence[:-N_TAIL])
            rows = [engine.prefill_chunk(seq_id, [t], logits=True) for t in sequence[-N_TAIL:]]
            expected.append(np.stack(rows))
            engine.seq_remove(seq_id)
        engine.close()
        yield Forest(options, tokens, expected)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("shared", [True, False])
def test_shared_or_not(forest: Forest, shared: bool, n_threads: int) -> None:
    engine = Engine.load(**forest.options, n_threads=n_threads, n_ubatch=96)
    seq_ids: list[int] = []
    wanted = [
        max([fork[1] for fork in FORKS if fork[0] == i], default=0) for i in range(len(FORKS))
    ]
    for i, (source, n_shared, _) in enumerate(FORKS):
        seq_ids.append(engine.seq_new("" if shared else str(i)))
        if shared and source is not None:
            engine.seq_copy(seq_ids[source], seq_ids[i], n_shared)
        start, end = engine.seq_length(seq_ids[i]), max(n_shared, wanted[i])
        if start < end:
            engine.prefill_chunk(seq_ids[i], forest.tokens[i][start:end])
    used = engine.kv_total_blocks - engine.kv_free_blocks
    assert (used < 2 * 560 // 32) == shared
    # The rest in ragged chunks beside each other, then the tails together.
    rng = np.random.default_rng(n_threads)
    while pending := [
        i
        for i in range(len(FORKS))
        if engine.seq_length(seq_ids[i]) < len(forest.tokens[i]) - N_TAIL
    ]:
        entries = []
        for i in rng.permutation(pending).tolist():
            start = engine.seq_length(seq_ids[i])
            size = min(int(rng.integers(1, 12)), len(forest.tokens[i]) - N_TAIL - start)
            chunk = forest.tokens[i][start : start + size]
            entries.append(StepEntry(seq_ids[i], tuple(chunk), False))
        engine.step(StepPlan(tuple(entries), 0, 0))
    for step in range(N_TAIL):
        order = rng.permutation(len(FORKS)).tolist()
        tokens = [forest.tokens[i][step - N_TAIL] for i in order]
        _, rows = engine.decode_batch([seq_ids[i] for i in order], tokens, logits=True)
        for i, row in zip(order, rows, strict=True):
            same = np.array_equal(row.view(np.uint32), forest.expected[i][step].view(np.uint32))
            assert same, f"sequence {i}, token {step - N_TAIL}"
    engine.check_integrity()
    engine.close()

"""Invariant 1: logits do not depend, in a single bit, on how the work was scheduled.

Each sequence is first computed alone, one token a pass, on one thread. Then the same tokens go
through the engine in every other way there is, and every row of logits must be equal bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import TARGETS
from invariance_cases import BEST, CASES, LONGEST
from numpy.typing import NDArray

from pybatcher.engine import Engine
from pybatcher.scheduling.plan import StepEntry, StepPlan
from pybatcher.testing.checkpoints import ARCHITECTURES, make_checkpoint

N_SEQUENCES = 16
N_TAIL = 6  # positions at the end of each sequence that are decoded, not prefilled


@dataclass(frozen=True)
class Rig:
    """One model, target and dtype; sequences, and the logits of every position of each."""

    options: dict[str, Any]
    tokens: list[list[int]]
    expected: list[NDArray[np.float32]]  # (length, vocab) each

    def engine(self, **options: Any) -> Engine:
        return Engine.load(**{**self.options, **options})

    def check_decode(self, engine: Engine, seq_ids: dict[int, int], what: str = "") -> None:
        """Decode the tails of the sequences {index: seq_id} together; compare every row."""
        for step in range(N_TAIL):
            indices = list(seq_ids)
            positions = [len(self.tokens[i]) - N_TAIL + step for i in indices]
            tokens = [self.tokens[i][p] for i, p in zip(indices, positions, strict=True)]
            _, rows = engine.decode_batch(list(seq_ids.values()), tokens, logits=True)
            for i, position, row in zip(indices, positions, rows, strict=True):
                assert_same(row, self.expected[i][position], f"{what} sequence {i} at {position}")

    def prompt(self, index: int) -> list[int]:
        return self.tokens[index][:-N_TAIL]


def assert_same(row: NDArray[np.float32], expected: NDArray[np.float32], what: str) -> None:
    assert np.array_equal(row.view(np.uint32), expected.view(np.uint32)), what


def make_rig(directory: Path, case: tuple[str, str, str, str], lengths: list[int]) -> Rig:
    """Compute every sequence alone, one token a pass, on one thread. The target is in force."""
    target, architecture, dtype, kv_dtype = case
    path = make_checkpoint(directory, architecture, tokenizer=False, vocab_size=203)
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, 203, length).tolist() for length in lengths]
    options: dict[str, Any] = {
        "path": path,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "n_ctx": 4096,
        "n_parallel": N_SEQUENCES,
    }
    engine = Engine.load(**options, n_threads=1, n_ubatch=1)
    assert engine.description()["cpu_target"] == target
    expected = []
    for i, sequence in enumerate(tokens):
        seq_id = engine.seq_new(str(i))
        rows = [engine.prefill_chunk(seq_id, [token], logits=True) for token in sequence]
        expected.append(np.stack(rows))
        engine.seq_remove(seq_id)
    engine.close()
    return Rig(options, tokens, expected)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    lengths = np.random.default_rng(4).integers(N_TAIL + 1, 70, N_SEQUENCES - 2).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYBATCHER_CPU_TARGET", request.param[0])
        yield make_rig(tmp_path_factory.mktemp("model"), request.param, [LONGEST, 265, *lengths])


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("n_ubatch", [1, 16, 512])
def test_any_chunking(rig: Rig, n_ubatch: int, n_threads: int) -> None:
    rng = np.random.default_rng(n_ubatch + n_threads)
    engine = rig.engine(n_ubatch=n_ubatch, n_threads=n_threads)
    for largest in (3, 40, 200, LONGEST):
        seq_id = engine.seq_new(str(largest))
        position, prompt = 0, rig.prompt(0)
        while position < len(prompt):
            chunk = prompt[position : position + int(rng.integers(1, largest + 1))]
            row = engine.prefill_chunk(seq_id, chunk, logits=True)
            position += len(chunk)
            assert_same(row, rig.expected[0][position - 1], f"chunk that ends at {position}")
        rig.check_decode(engine, {0: seq_id})
    engine.close()


DTYPES = ("f32", "bf16", "int8", "int4")
# Each architecture runs with each dtype on the best target, and with one dtype on any other target.
# The rig has each dtype on each target, so each pair of these is tested.
ARCHITECTURE_CASES = [
    (target, architecture, dtype)
    for (i, target), (j, architecture), (k, dtype) in itertools.product(
        enumerate(TARGETS), enumerate(ARCHITECTURES), enumerate(DTYPES)
    )
    if target == BEST or (i + j) % len(DTYPES) == k
]


@pytest.mark.parametrize(("target", "architecture", "dtype"), ARCHITECTURE_CASES)
def test_every_architecture(
    target: str, architecture: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every target: chunks in mixed steps, tiles of 13 rows, two threads; then all decode."""
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", target)
    rig = make_rig(tmp_path, (target, architecture, dtype, "auto"), [270, 61, 40, 12, 8])
    engine = rig.engine(n_ubatch=13, n_threads=2)
    seq_ids = {i: engine.seq_new(str(i)) for i in range(len(rig.tokens))}
    for start in range(0, 270, 19):  # rows of a sequence: tiles begin anywhere in them
        chunks = {i: tuple(rig.prompt(i)[start : start + 19]) for i in seq_ids}
        entries = [StepEntry(seq_ids[i], chunk, True) for i, chunk in chunks.items() if chunk]
        if entries:
            engine.step(StepPlan(tuple(entries), 0, 0))
    rig.check_decode(engine, seq_ids)
    engine.close()


@pytest.mark.parametrize(("n_ubatch", "n_threads"), [(1, 2), (16, 1), (16, 2), (512, 1), (512, 2)])
def test_random_neighbours(rig: Rig, n_ubatch: int, n_threads: int) -> None:
    """Mixed steps of 2 to 16 sequences in ragged chunks, then decoding in random batches."""
    rng = np.random.default_rng([n_ubatch, n_threads])
    engine = rig.engine(n_ubatch=n_ubatch, n_threads=n_threads)
    seq_ids = {i: engine.seq_new(str(i)) for i in range(N_SEQUENCES)}
    pending = set(seq_ids)
    while pending:
        entries = []
        for i in rng.permutation(sorted(pending))[: rng.integers(2, N_SEQUENCES + 1)]:
            start = engine.seq_length(seq_ids[i])
            chunk = rig.prompt(i)[start : start + int(rng.integers(1, 90))]
            if start + len(chunk) == len(rig.prompt(i)):
                pending.remove(i)
            if chunk:
                entries.append(StepEntry(seq_ids[i], tuple(chunk), bool(rng.integers(2))))
        if entries:
            engine.step(StepPlan(tuple(entries), 0, 0))
    shuffled = rng.permutation(N_SEQUENCES).tolist()
    begin = 0
    while begin < N_SEQUENCES:
        size = int(rng.integers(2, N_SEQUENCES + 1))
        rig.check_decode(engine, {i: seq_ids[i] for i in shuffled[begin : begin + size]})
        begin += size
    engine.check_integrity()
    engine.close()


def test_after_seq_copy(rig: Rig) -> None:
    engine = rig.engine(n_ubatch=64)
    for shared in (1, 16, 31, 32, 200, 256, 257, LONGEST - N_TAIL):
        source, target = engine.seq_new(), engine.seq_new()
        engine.prefill_chunk(source, rig.prompt(0))
        engine.seq_copy(source, target, shared)
        if shared < len(rig.prompt(0)):
            engine.prefill_chunk(target, rig.prompt(0)[shared:])
        rig.check_decode(engine, {0: target}, f"copy of {shared}")
        rig.check_decode(engine, {0: source}, f"source of a copy of {shared}")  # not harmed by it
        engine.seq_remove(source)
        engine.seq_remove(target)
    engine.close()


def test_after_seq_match(rig: Rig) -> None:
    engine = rig.engine(n_ubatch=64)
    first = engine.seq_new()
    engine.prefill_chunk(first, rig.prompt(0))
    second = engine.seq_new()
    matched = engine.seq_match(second, rig.prompt(0))
    assert matched == (len(rig.prompt(0)) - 1) // 32 * 32
    engine.prefill_chunk(second, rig.prompt(0)[matched:])
    rig.check_decode(engine, {0: second})
    engine.seq_remove(first)
    engine.seq_remove(second)
    third = engine.seq_new()
    assert engine.seq_match(third, rig.prompt(0)) == matched
    engine.prefill_chunk(third, rig.prompt(0)[matched:])
    rig.check_decode(engine, {0: third})
    engine.close()


def test_after_seq_remove_and_recompute(rig: Rig) -> None:
    engine = rig.engine(n_ubatch=64)
    for kept in (0, 1, 31, 32, 33, 256, 300):
        seq_id, other = engine.seq_new(), engine.seq_new()
        engine.prefill_chunk(seq_id, rig.prompt(0))
        if kept == 0:
            engine.seq_remove(seq_id)
            assert engine.seq_new("elsewhere") == seq_id
        else:
            engine.seq_remove(seq_id, kept)
        engine.prefill_chunk(other, rig.tokens[1])  # takes the pages that were given back
        engine.prefill_chunk(seq_id, rig.prompt(0)[kept:])
        rig.check_decode(engine, {0: seq_id}, f"{kept} kept")
        engine.seq_remove(seq_id)
        engine.seq_remove(other)
    engine.close()
